// How a dim would best be cut, from what the graph does with a value.
#pragma once

#include <map>
#include <optional>
#include <set>
#include <tuple>
#include <utility>
#include <vector>

#include "ir/graph.h"
#include "passes/forward_uses.h"
#include "passes/layout.h"

namespace shardc {

// Answers how a dim would best be cut over the axes by looking at the forward ops that make and
// read the value. A layout is always that of a cut over all of the axes. What was asked is
// remembered: the graph stays as it is.
class LayoutInference {
 public:
  using Values = std::set<const Value*>;

  // Whether a factor may be cut in more parts than it has elements, so that the last are empty.
  enum class Parts { kFilled, kSomeEmpty };

  // `parts`: how a dim may be cut for which there is no other way. `known`: params that are cut as
  // they will be; it must live as long.
  LayoutInference(const Mesh& mesh, AxisList axes, Parts parts, const Values& known)
      : mesh_(mesh), axes_(axes), num_parts_(NumParts(axes, mesh)), parts_(parts), known_(known) {}
  // With no param known.
  LayoutInference(const Mesh& mesh, AxisList axes, Parts parts = Parts::kFilled);

  // Whether a cut of the dim survives the ops that use the value.
  bool Carries(const Value* v, int dim);

  // The layout that the users of the value ask for, canonical; without granule and segments when
  // they ask for nothing.
  DimSharding Wanted(const Value* v, int dim);

  // For dims of v, major to minor, that an op ahead merges into one: the one among them that is cut
  // when the merged dim is cut as its users want. Nothing where they want no cut, or one along
  // several.
  std::optional<int64_t> DimToCut(const Value* v, const Ints& dims);

  // Whether what ops ahead compute with the value is, as far as is known, made in the layout that
  // this one of a dim of it gives to their factors.
  bool Fits(const Value* v, int dim, const DimSharding& layout);

 private:
  // Who says how a value is made: the op that makes it, if that were cut; the spec, of the value; a
  // param.
  enum class Source { kOp, kConstraint, kParam };
  struct Origin {
    DimSharding layout;
    Source source;
  };
  // Operands of an op that are made in a layout of a factor: the first two with granules or
  // segments of it, and the first two that are cut along it plainly.
  struct Made {
    std::vector<std::pair<size_t, Origin>> informative, plain;
  };
  // Of a dim of a value, or a factor of an op, and how many ops away from the first one it is.
  template <typename Of, typename Answer>
  using Answers = std::map<std::tuple<const Of*, int, int>, Answer>;

  // The layout of a cut where no op asks for one: without granule or segments.
  DimSharding Plain() const { return {axes_, 1, {}}; }

  bool Carries(const Value* v, int dim, int depth);
  std::optional<int64_t> DimToCut(const Value* v, const Ints& dims, int depth);
  std::optional<int64_t> DimToCut(const Op& op, const ShardingRule& rule,
                                  const std::vector<DimFactors>& operand, const Ints& dims,
                                  int depth);
  bool Fits(const Value* v, int dim, const DimSharding& layout, int depth);
  // Whether an operand is made in these cuts, or it is not known how it is made.
  bool IsMadeSo(const Value* v, const ShardingRule& rule, const std::vector<DimFactors>& dims,
                const std::vector<FactorCut>& cuts);
  bool FactorCarries(const Op& op, const ShardingRule& rule, int factor, int depth);
  // The axes from number `axis` on, dealt over the factors from number `at` on so that each but the
  // last is cut into single elements. Nothing when that leaves axes over, or takes a factor that
  // may not be cut.
  template <typename MayCut>
  std::optional<std::vector<FactorCut>> Deal(const ShardingRule& rule,
                                             const std::vector<int>& factors, size_t at, int axis,
                                             Parts parts, const MayCut& may_cut) const;
  // The factors of a dim that the axes cut: as far to the major side as can be.
  template <typename MayCut>
  std::optional<std::vector<FactorCut>> CutsOf(const ShardingRule& rule, const DimFactors& f,
                                               Parts parts, const MayCut& may_cut) const;
  std::optional<std::vector<FactorCut>> CarriedCuts(const Op& op, const ShardingRule& rule,
                                                    const DimFactors& f, int depth);
  bool UseCarries(const Op& op, const ShardingRule& rule, const DimFactors& f, int depth);
  // The layout that the users of the value ask for; Plain() when they ask for nothing.
  DimSharding Forward(const Value* v, int dim, int depth);
  DimSharding FromUse(const Op& op, const ShardingRule& rule, size_t operand, int dim, int depth);
  // The layout of a factor that readers of the results ask for.
  std::optional<DimSharding> FromResults(const Op& op, const ShardingRule& rule, int factor,
                                         int depth);
  // The layout of a factor in which an operand that has it is made. Operand `but` is not asked.
  std::optional<Origin> FromOperands(const Op& op, const ShardingRule& rule, int factor, size_t but,
                                     int depth);
  std::optional<DimSharding> Project(const ShardingRule& rule, const DimFactors& dim, int64_t size,
                                     const DimSharding& layout, int factor) const;
  // The layout of a dim whose factors are cut so. Of one that is cut alone: as `wanted` finds it,
  // if that can be written down.
  template <typename Ask>
  DimSharding Lift(const ShardingRule& rule, const DimFactors& dim, int64_t size,
                   const std::optional<std::vector<FactorCut>>& cuts, const Ask& wanted) const;
  // The layout of a result's dim where an operand is made cut along several of its factors.
  std::optional<Origin> AlongSeveral(const Op& op, const ShardingRule& rule, const DimFactors& f,
                                     int64_t size, int depth);
  // The layout in which the producer of the value would give it, were the dim cut; nothing where
  // neither that nor the op says.
  std::optional<Origin> Backward(const Value* v, int dim, int depth);

  const Mesh& mesh_;
  AxisList axes_;
  int64_t num_parts_;
  Parts parts_;
  const Values& known_;
  RulesOfOps rules_;
  Answers<Value, bool> carries_;
  Answers<Value, DimSharding> forward_;
  Answers<Value, std::optional<Origin>> backward_;
  Answers<Op, Made> made_;
  std::set<std::pair<const Value*, int>> fitted_;
};

// Whether a layout says more than how many parts there are.
bool IsInformative(const DimSharding& layout);

}  // namespace shardc
