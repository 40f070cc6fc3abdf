// Instructions beside a matrix product that cuBLASLt can do along with it, in an epilogue. The plan
// is the same for all backends, so they are looked for in the program. Plain host code: the same
// for every rank, because it looks at the body only.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "ir/program.h"

namespace shardc::cuda {

// What is done with a product besides a bias.
enum class Epilogue : uint8_t {
  kNone,
  kGelu,          // its gelu, the product itself being of no use
  kGeluAux,       // its gelu, and the product itself
  kGeluGrad,      // the gradient of a gelu, the product being dy
  kGeluGradSums,  // the same, and the gradient's sum over all dims but the last
  kSumsOfRight,   // the product, and the sum of its right operand over what is contracted
  kSumsOfLeft,    // the same of its left operand
};
std::string_view EpilogueName(Epilogue epilogue);

// A group is one product and
//   - a gelu {approximate="tanh"} of it, whoever else reads the product; or
//   - a gelu_grad {approximate="tanh"} of it, which nothing else reads, and, if there is one of the
//     product's type, a reduce_sum of what that gives; or
//   - a reduce_sum of an operand of a matmul_tn: a bias gradient.
// Sums are over all dims but the last. The product is of one matrix by another (the right operand
// has two dims; matmul_tn has no batch dims) and of whole rows, is not added to anything, and has a
// bias (linear) with a gelu only. What cuBLASLt wants: it is not f64; bias, sums, result and the
// operand of the gelu have the type of the product's result; where that operand is in memory, its
// last dim (the leading dim of an auxiliary matrix) is a multiple of 8. No tensor has padding:
// separate kernels leave it out of sums, or leave it as it is. All of a group run where one of them
// stands: no other instruction on the way there touches what another of them writes, or writes what
// that reads; nor do two groups change places that touch the same. What the one kernel writes
// overlaps nothing that it reads and nothing else that it writes.
struct ProductGroup {
  Epilogue epilogue = Epilogue::kNone;
  std::vector<int> instructions;  // ascending
  int product = -1;               // one of them
  int place = -1;                 // where they run: one of them
  // Buffers; -1: there is none.
  int left = -1, right = -1;
  int bias = -1;    // read
  int aux = -1;     // operand of the gelu: written by kGeluAux, read by the gradients
  int result = -1;  // what the epilogue makes of the product
  int sums = -1;    // written
};

// In the order of their places. Each instruction is in one group at most. `refusals` gets a
// sentence for each one that reads a product, or an operand of one, but is in no group.
std::vector<ProductGroup> FindProductGroups(const Program& program,
                                            std::vector<std::string>* refusals = nullptr);

}  // namespace shardc::cuda
