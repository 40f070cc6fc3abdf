// Products with weights, however the model stores these.
#pragma once

#include <vector>

#include "ir/graph.h"

namespace shardc::recover {

// Dims of a parameter that stand for one dim of what is computed with it, major to minor: [d,
// heads, head_dim] is a matrix with rows {0} and columns {1, 2}.
struct ParamDims {
  Op* param = nullptr;  // null: none was found
  Ints dims;
  int64_t parts = 1;  // that lie one behind the other in the dim: of each, or of one of them
};

// x @ weight (+ bias), of a weight that is a matrix, or one of several in a parameter, and whose
// dims may be several or in another order; or all matrices of one parameter at once, those of
// experts: [experts, in, out] or [experts, out, in], with a bias [experts, out], or one behind the
// other, as [experts * out, in], with [experts * out].
struct Linear {
  bool experts = false;
  Op* matmul = nullptr;
  Op* weight = nullptr;
  Ints rows, columns;  // dims of the weight: summed over, and of the result
  Ints stacked = {};   // where several lie one behind the other: the dim of the weight, how many
  ParamDims bias;
  std::vector<Op*> bias_pieces = {};  // vectors: where it is put together of these and constants
  Value* out = nullptr;               // with the bias
};

// Of one with `experts`.
int64_t NumExperts(const Linear& linear);
// Of every product of the graph that is one, in order.
std::vector<Linear> FindLinears(const Graph& graph);

// The parameter, but for a cast.
Op* ParamBehind(const Value* v);
// The parameter that the vector v is, or comes from as a piece: biases of q, k and v may be
// stored as one.
Op* BiasBehind(const Value* v);

}  // namespace shardc::recover
