#include "passes/split_params.h"

#include <algorithm>
#include <optional>

#include "ir/builder.h"
#include "ir/diagnostic.h"
#include "ir/op_def.h"
#include "passes/infer_layouts.h"
#include "passes/infers.h"
#include "passes/layout.h"
#include "passes/split_axes.h"
#include "passes/weights.h"

namespace shardc {
namespace {

// Part of another source along one dim.
class PieceSource : public TensorSource {
 public:
  PieceSource(std::shared_ptr<const TensorSource> whole, size_t dim, int64_t start)
      : whole_(std::move(whole)), dim_(dim), start_(start) {}

  void Read(const Shape& offset, const Shape& size, void* out) const override {
    Shape at = offset;
    at[dim_] += start_;
    whole_->Read(at, size, out);
  }

 private:
  std::shared_ptr<const TensorSource> whole_;
  size_t dim_;
  int64_t start_;
};

struct FactorUnit {
  int factor = -1;
  int64_t count = 1;
};

// One split, and what it takes apart, back to the parameters.
class Splitter {
 public:
  Splitter(Graph& graph, Op* split) : graph_(graph), split_(split) {}

  void Run() {
    const int dim = SplitDim();
    if (dim < 0) return;
    int64_t start = 0;
    for (const Value* r : split_->results) {
      sizes_.push_back(r->type.shape[dim]);
      starts_.push_back(start);
      start += sizes_.back();
    }
    const Along along{dim, 1};
    if (!Collect(split_->operands[0], along) || !CutsDiffer(dim)) return;
    for (size_t i = 0; i < sizes_.size(); ++i) {
      Value* piece = Clone(split_->operands[0], along, i);
      graph_.ReplaceAllUses(split_->result(static_cast<int>(i)), piece);
    }
    for (auto& [param, at] : params_) graph_.sources.erase(param->attrs.String("name"));
  }

 private:
  // The dim of a value that is taken apart, and the elements of it in one of `sizes_`.
  struct Along {
    int dim = 0;
    int64_t unit = 1;
  };

  // The dim along which the op's results lie one after the other in its operand; -1 where they do
  // not.
  int SplitDim() const {
    if (split_->operands.size() != 1) return -1;
    // A weight's piece that nothing reads would be lost.
    for (const Value* r : split_->results) {
      if (!graph_.HasUses(r)) return -1;
    }
    if (split_->def->rule(*split_).linear != std::vector<std::vector<int>>{{0}}) return -1;
    const Shape& whole = split_->in(0).shape;
    int dim = -1;
    for (size_t d = 0; d < whole.size(); ++d) {
      int64_t sum = 0;
      bool equal = true;
      for (const Value* r : split_->results) {
        if (r->type.shape.size() != whole.size()) return -1;
        sum += r->type.shape[d];
        equal = equal && r->type.shape[d] == whole[d];
      }
      if (equal) continue;
      if (dim >= 0 || sum != whole[d]) return -1;
      dim = static_cast<int>(d);
    }
    return dim;
  }

  // The factor of the op's result along which it is taken apart, and how many of it are a unit;
  // nothing where the pieces are not whole numbers of it.
  static std::optional<FactorUnit> FactorOf(const ShardingRule& rule, const Along& along) {
    const DimFactors& dim = rule.results[0][along.dim];
    if (dim.factors.empty() || !dim.segments.empty()) return std::nullopt;
    if (rule.factors[dim.factors[0]].kind != FactorKind::kPlain) return std::nullopt;
    int64_t right = 1;
    for (size_t i = 1; i < dim.factors.size(); ++i) right *= rule.factors[dim.factors[i]].size;
    if (along.unit % right != 0) return std::nullopt;
    return FactorUnit{dim.factors[0], along.unit / right};
  }

  // Where an operand has the factor: major in its dim, so that pieces are contiguous. Dim -1: it
  // does not have it.
  static std::optional<Along> InOperand(const ShardingRule& rule, size_t operand,
                                        const FactorUnit& unit) {
    const int d = DimOfFactor(rule.operands[operand], unit.factor);
    if (d < 0) return Along{-1, 0};
    const DimFactors& dim = rule.operands[operand][d];
    if (dim.factors[0] != unit.factor || !dim.segments.empty()) return std::nullopt;
    int64_t elements = unit.count;
    for (size_t i = 1; i < dim.factors.size(); ++i) elements *= rule.factors[dim.factors[i]].size;
    return Along{d, elements};
  }

  // Parameters and ops whose only purpose is the value, from which the dim can be taken apart.
  bool Collect(Value* v, const Along& along) {
    Op* op = v->producer;
    if (!op || !graph_.OnlyUser(v)) return false;
    if (op->def->is_state) {
      params_.emplace_back(op, along.dim);
      return true;
    }
    if (!op->def->rule || op->results.size() != 1) return false;
    if (op->def->constrains) {
      if (!op->out().sharding.replicated() && !op->attrs.Has("role")) return false;
      constraints_.emplace_back(op, along.dim);
    }
    ShardingRule rule = op->def->rule(*op);
    auto unit = FactorOf(rule, along);
    if (!unit) return false;
    bool any = false;
    for (size_t i = 0; i < op->operands.size(); ++i) {
      auto there = InOperand(rule, i, *unit);
      if (!there || (there->dim >= 0 && !Collect(op->operands[i], *there))) return false;
      any = any || there->dim >= 0;
    }
    return any && MakesPieces(*op, along);
  }

  TensorType PieceType(const Value* v, const Along& along, size_t i) const {
    TensorType type(v->type.dtype, v->type.shape);
    type.shape[along.dim] = sizes_[i] * along.unit;
    return type;
  }

  Attributes PieceAttributes(const Op& op, const Along& along, size_t i) const {
    return AttributesOfPart(op, std::vector{PieceType(op.result(), along, i)}, along.dim,
                            starts_[i] * along.unit);
  }

  // Whether the op makes pieces of pieces.
  bool MakesPieces(const Op& op, const Along& along) const {
    ShardingRule rule = op.def->rule(op);
    auto unit = FactorOf(rule, along);
    for (size_t i = 0; i < sizes_.size(); ++i) {
      std::vector<TensorType> operands;
      for (size_t k = 0; k < op.operands.size(); ++k) {
        auto there = InOperand(rule, k, *unit);
        operands.push_back(there->dim < 0 ? op.in(static_cast<int>(k))
                                          : PieceType(op.operands[k], *there, i));
      }
      const TensorType piece = PieceType(op.result(), along, i);
      if (!Infers(*op.def, operands, PieceAttributes(op, along, i), {&piece, 1})) return false;
    }
    return true;
  }

  // Whether the axis that cuts the parameters can cut the pieces in numbers of parts that differ.
  bool CutsDiffer(int dim) const {
    int axis = -1;
    for (const auto& [param, at] : params_) {
      const DimSharding& cut = param->out().sharding.dims[at];
      if (!cut.cut()) continue;
      if (cut.axes.size() != 1 || (axis >= 0 && cut.axes[0] != axis)) return false;
      axis = cut.axes[0];
    }
    if (std::ranges::any_of(constraints_, [&](const auto& c) { return IsForPieces(c, dim); })) {
      return true;
    }
    if (axis < 0) return false;
    // Segments within a piece are none of the whole.
    if (std::ranges::any_of(split_->results, [&](const Value* piece) {
          const auto layout = CarriedLayout(piece, dim, AxisList{axis}, graph_.mesh);
          return layout && !layout->segments.empty();
        })) {
      return true;
    }
    int64_t least = graph_.mesh.axis_size(axis), most = 0;
    for (Value* piece : split_->results) {
      int64_t parts = NarrowParts(piece, dim, graph_.mesh.axis_size(axis));
      least = std::min(least, parts);
      most = std::max(most, parts);
    }
    return least < most;
  }

  // Whether the spec cuts what is split so that no cut of it is taken, and of a piece one is.
  bool IsForPieces(const std::pair<Op*, int>& constraint, int dim) const {
    const auto& [op, at] = constraint;
    const AxisList own = op->out().sharding.dims[at].axes;
    if (own.size() != 1) return false;
    const auto axes = AxesBesideWeights(*op, at, graph_.mesh);
    // Heads are dealt out over the weights' axes first.
    if (!axes || axes->back() != own[0] || CarriedLayout(op->result(), at, *axes, graph_.mesh))
      return false;
    return std::ranges::any_of(split_->results, [&](const Value* piece) {
      return CarriedLayout(piece, dim, *axes, graph_.mesh) ||
             NarrowPartsBeside(piece, dim, own[0], graph_.mesh) < graph_.mesh.axis_size(own[0]);
    });
  }

  // What makes piece i of the value.
  Value* Clone(Value* v, const Along& along, size_t i) {
    Op* op = v->producer;
    if (op->def->is_state) return PieceOfParam(op, along, i);
    ShardingRule rule = op->def->rule(*op);
    auto unit = FactorOf(rule, along);
    std::vector<Value*> operands = op->operands;
    for (size_t k = 0; k < operands.size(); ++k) {
      auto there = InOperand(rule, k, *unit);
      if (there->dim >= 0) operands[k] = Clone(operands[k], *there, i);
    }
    Builder builder(graph_, split_, *op);
    Value* made = builder.Make(op->name(), std::move(operands), PieceAttributes(*op, along, i));
    if (op->def->constrains) {
      made->type.sharding = PieceSharding(*op, along);
      made->provenance = op->result()->provenance;
    }
    return made;
  }

  static Sharding PieceSharding(const Op& op, const Along& along) {
    Sharding sharding = op.out().sharding;
    DimSharding& dim = sharding.dims[along.dim];
    dim = {dim.axes, 1, {}};
    return sharding;
  }

  Value* PieceOfParam(Op* param, const Along& along, size_t i) {
    const std::string& whole = param->attrs.String("name");
    const auto at = static_cast<size_t>(along.dim);
    const int64_t start = starts_[i] * along.unit, whole_size = param->out().shape[at];
    TensorType type = PieceType(param->result(), along, i);
    type.sharding = PieceSharding(*param, along);
    Attributes attrs = param->attrs;
    const std::string name = StrCat(whole, "[", start, ":", start + type.shape[at], "]");
    attrs.Set("name", name);
    attrs.Set("piece_of", whole);
    attrs.Set("piece_dim", int64_t{along.dim});
    attrs.Set("piece_start", start);
    attrs.Set("whole_size", whole_size);
    Op* piece = graph_.AddOp(*param->def, {}, {type}, std::move(attrs), param);
    piece->BelongWith(*param);
    piece->result()->provenance = param->result()->provenance;
    piece->result()->name = param->result()->name;
    if (auto source = graph_.sources.find(whole); source != graph_.sources.end()) {
      graph_.sources[name] = std::make_shared<PieceSource>(source->second, at, start);
    }
    return piece->result();
  }

  Graph& graph_;
  Op* split_;
  std::vector<int64_t> sizes_, starts_;      // of the pieces, in the split's operand
  std::vector<std::pair<Op*, int>> params_;  // and the dim that is taken apart
  std::vector<std::pair<Op*, int>> constraints_;
};

}  // namespace

void SplitParams(Graph& graph) {
  graph.EraseDead();
  std::vector<Op*> splits;
  for (const auto& op : graph.ops()) {
    if (op->def->rule && op->results.size() > 1) splits.push_back(op.get());
  }
  for (Op* split : splits) Splitter(graph, split).Run();
  graph.EraseDead();
}

}  // namespace shardc
