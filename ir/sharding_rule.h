// A sharding rule maps every dim of an op's operands and results to factors: the op's loop indices.
// Rules are data: the passes read them, ops write them.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "ir/sharding.h"

namespace shardc {

struct Op;

enum class FactorKind : uint8_t {
  kPlain,       // may be cut; where a result lacks it that result becomes partial
  kReplicated,  // may not be cut: the op needs the whole dim
  kExpandable,  // may be cut, but then OpDef::expand must rewrite the op (only statistics travel)
};

enum class ReduceKind : uint8_t { kSum, kMax };

struct Factor {
  int64_t size = 1;
  FactorKind kind = FactorKind::kPlain;
  ReduceKind reduce = ReduceKind::kSum;  // how results that lack the factor combine
  // The op must know which part of the factor it has, or the size of the whole: on a smaller tensor
  // it does something else.
  bool placed = false;
  // What a rank has of the factor must be one stretch: cut in segments along it, the op becomes one
  // for each of them (InsertReshards), by OpDef::resized.
  bool contiguous = false;
};

// The factors of one dim: their product, major to minor; empty: the dim (of size 1, or broadcast)
// is whole. `segments`: the dim is a concatenation of pieces of these sizes, each with the factor
// (exactly one then) for itself, as the operand of split is.
struct DimFactors {
  std::vector<int> factors;
  std::vector<int64_t> segments;
};

struct ShardingRule {
  std::vector<Factor> factors;
  std::vector<std::vector<DimFactors>> operands;  // [operand][dim]
  std::vector<std::vector<DimFactors>> results;   // [result][dim]
  // Groups of operands in which the op is jointly linear, the others held fixed: partial sums may
  // pass through when all operands of a group are partial over the same axes. {{0},{1}} for mul,
  // {{0,1}} for add.
  std::vector<std::vector<int>> linear;

  int AddFactor(int64_t size, FactorKind kind = FactorKind::kPlain,
                ReduceKind reduce = ReduceKind::kSum);
};

// The dim of a tensor (given by its dims' factors) that has the factor, or -1.
int DimOfFactor(const std::vector<DimFactors>& dims, int factor);

// The rule of "b s k, k n -> b s n": each operand's and result's dims, one letter or word a dim;
// "." is a dim without a factor; "(h d)" a product. Sizes come from the op's types. A suffix on
// first mention sets the kind: "v!" replicated, "v?" expandable; "^max" reduces by max. Leading
// "..." stands for all remaining leading dims, aligned at the right, with dims of size 1
// broadcasting.
ShardingRule EinsumRule(const Op& op, std::string_view text,
                        std::vector<std::vector<int>> linear = {});
// Elementwise with numpy broadcasting: dims aligned at the right, size-1 dims broadcast.
ShardingRule ElementwiseRule(const Op& op, std::vector<std::vector<int>> linear = {});

}  // namespace shardc
