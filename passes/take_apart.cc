#include "passes/take_apart.h"

#include "ir/diagnostic.h"
#include "ir/op_def.h"
#include "passes/infers.h"
#include "passes/provenance.h"

namespace shardc {
namespace {

class Taking {
 public:
  Taking(Builder& builder, const Op& op, const ShardingRule& rule, const FactorCut& cut)
      : builder_(builder),
        op_(op),
        rule_(rule),
        cut_(cut),
        sizes_(cut.layout.segments.begin(), cut.layout.segments.end()) {}

  std::vector<Value*> Run() {
    std::vector<std::vector<Value*>> operands, results;  // of each operand; of each segment
    for (size_t i = 0; i < op_.operands.size(); ++i) operands.push_back(Split(i));
    int64_t start = 0;
    for (size_t k = 0; k < sizes_.size(); ++k) {
      std::vector<Value*> own;
      for (const std::vector<Value*>& parts : operands) own.push_back(parts[k]);
      results.push_back(Part(k, start, std::move(own)));
      start += sizes_[k];
    }
    std::vector<Value*> values;
    for (size_t r = 0; r < op_.results.size(); ++r) values.push_back(Together(r, results));
    return values;
  }

 private:
  // Of an operand or a result, the dim that has the factor, alone; or -1.
  int DimOf(const std::vector<DimFactors>& dims) const {
    const int d = DimOfFactor(dims, cut_.factor);
    SHARDC_CHECK(d < 0 || dims[d].factors.size() == 1, Describe(op_));
    return d;
  }

  DimSharding OfSegment() const { return {cut_.layout.axes, 1, {}}; }

  // An operand in each segment.
  std::vector<Value*> Split(size_t operand) {
    Value* v = op_.operands[operand];
    const int d = DimOf(rule_.operands[operand]);
    if (d < 0) return std::vector<Value*>(sizes_.size(), v);
    Op* split = builder_.Create("split", {v}, {{"axis", int64_t{d}}, {"sizes", sizes_}});
    for (Value* part : split->results) {
      part->type.sharding = v->type.sharding;
      part->type.sharding.dims[d] = OfSegment();
      part->provenance = v->provenance;
    }
    return split->results;
  }

  // The results in one segment.
  std::vector<Value*> Part(size_t segment, int64_t start, std::vector<Value*> operands) {
    std::vector<TensorType> types;
    for (size_t r = 0; r < op_.results.size(); ++r) {
      TensorType& type = types.emplace_back(op_.results[r]->type);
      const int d = DimOf(rule_.results[r]);
      if (d < 0) continue;
      type.shape[d] = sizes_[segment];
      type.sharding.dims[d] = OfSegment();
    }
    Attributes attrs = AttributesOfPart(op_, types, DimOf(rule_.results[0]), start);
    Op* part = builder_.Create(op_.name(), std::move(operands), std::move(attrs));
    for (size_t r = 0; r < op_.results.size(); ++r) {
      SHARDC_CHECK(part->results[r]->type.SameTensor(types[r]), Describe(op_));
      part->results[r]->type = std::move(types[r]);
      part->results[r]->provenance = op_.results[r]->provenance;
    }
    return part->results;
  }

  Value* Together(size_t result, const std::vector<std::vector<Value*>>& by_segment) {
    std::vector<Value*> parts;
    for (const std::vector<Value*>& results : by_segment) parts.push_back(results[result]);
    if (const int d = DimOf(rule_.results[result]); d >= 0) {
      return builder_.Make("concat", std::move(parts), {{"axis", int64_t{d}}});
    }
    Value* sum = parts[0];
    for (size_t k = 1; k < parts.size(); ++k) {
      sum = builder_.Add(sum, parts[k]);
      sum->type.sharding = op_.results[result]->type.sharding;
      sum->provenance = op_.results[result]->provenance;
    }
    return sum;
  }

  Builder& builder_;
  const Op& op_;
  const ShardingRule& rule_;
  const FactorCut& cut_;
  const Ints sizes_;
};

}  // namespace

std::vector<Value*> TakeApart(Builder& builder, const Op& op, const ShardingRule& rule,
                              const FactorCut& cut) {
  return Taking(builder, op, rule, cut).Run();
}

}  // namespace shardc
