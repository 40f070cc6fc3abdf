#include "passes/split_params.h"

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <vector>

#include "ir/builder.h"
#include "ir/constant.h"
#include "ir/diagnostic.h"
#include "ir/op_def.h"
#include "passes/carried_layout.h"
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

// Ops between a split and the parameters: a convolution before it is written as one for each tap.
constexpr size_t kMostOps = 256;

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
    if (!Collect(split_->operands[0], {dim, 1}) || !CutsDiffer(dim) || IsReadOtherwise()) return;
    for (size_t i = 0; i < sizes_.size(); ++i) {
      std::map<const Value*, Value*> made;
      Value* piece = Clone(split_->operands[0], i, made);
      graph_.ReplaceAllUses(split_->result(static_cast<int>(i)), piece);
    }
    for (auto& [param, at] : params_) graph_.sources.erase(param->attrs.String("name"));
  }

 private:
  // The dim of a value that is taken apart, and the elements of it in one of `sizes_`.
  struct Along {
    int dim = 0;
    int64_t unit = 1;
    bool operator==(const Along&) const = default;
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

  // The factor of an op's result along which it is taken apart, and how many of it are a unit;
  // nothing where the pieces are not whole numbers of it.
  static std::optional<FactorUnit> FactorOf(const ShardingRule& rule, const Value* result,
                                            const Along& along) {
    const DimFactors& dim = rule.results[result->index][along.dim];
    if (dim.factors.empty() || !dim.segments.empty()) return std::nullopt;
    if (rule.factors[dim.factors[0]].kind != FactorKind::kPlain) return std::nullopt;
    int64_t right = 1;
    for (size_t i = 1; i < dim.factors.size(); ++i) right *= rule.factors[dim.factors[i]].size;
    if (along.unit % right != 0) return std::nullopt;
    return FactorUnit{dim.factors[0], along.unit / right};
  }

  // Where an operand or a result has the factor: major in its dim, so that pieces are contiguous.
  // Dim -1: it does not have it.
  static std::optional<Along> Having(const ShardingRule& rule, const std::vector<DimFactors>& dims,
                                     const FactorUnit& unit) {
    const int d = DimOfFactor(dims, unit.factor);
    if (d < 0) return Along{-1, 0};
    const DimFactors& dim = dims[d];
    if (dim.factors[0] != unit.factor || !dim.segments.empty()) return std::nullopt;
    int64_t elements = unit.count;
    for (size_t i = 1; i < dim.factors.size(); ++i) elements *= rule.factors[dim.factors[i]].size;
    return Along{d, elements};
  }

  // Parameters and ops whose only purpose is the value, from which the dim can be taken apart.
  bool Collect(Value* v, const Along& along) {
    const auto [at, fresh] = along_.emplace(v, along);
    if (!fresh) return at->second == along;
    Op* op = v->producer;
    if (!op) return false;
    if (ConstantOf(v)) return true;
    if (op->def->is_state) {
      params_.emplace_back(op, along.dim);
      return CanBePiece(*op, along.dim);
    }
    if (!op->def->rule) return false;
    if (ops_.insert(op).second && ops_.size() > kMostOps) return false;
    if (op->def->constrains) {
      if (!op->out().sharding.replicated() && !op->attrs.Has("role")) return false;
      constraints_.emplace_back(op, along.dim);
    }
    const ShardingRule rule = op->def->rule(*op);
    const auto unit = FactorOf(rule, v, along);
    if (!unit) return false;
    for (const Value* other : op->results) {
      const auto there = Having(rule, rule.results[other->index], *unit);
      if (!there || there->dim < 0) return false;
      const auto [known, is_new] = along_.emplace(other, *there);
      if (!is_new && known->second != *there) return false;
    }
    bool any = false;
    for (size_t i = 0; i < op->operands.size(); ++i) {
      const auto there = Having(rule, rule.operands[i], *unit);
      if (!there || (there->dim >= 0 && !Collect(op->operands[i], *there))) return false;
      if (there->dim < 0) whole_.insert(op->operands[i]);
      any = any || there->dim >= 0;
    }
    return any && MakesPieces(*op, rule, *unit);
  }

  // A piece may be taken apart again, along the same dim.
  static bool CanBePiece(const Op& param, int dim) {
    return !param.attrs.Has("piece_of") || param.attrs.Int("piece_dim") == dim;
  }

  // Whether what is collected is also read by others.
  bool IsReadOtherwise() const {
    return std::ranges::any_of(along_, [&](const auto& v) {
      const Value* value = v.first;
      if (ConstantOf(value)) return false;
      return whole_.contains(value) || graph_.IsOutput(value) ||
             std::ranges::any_of(value->users, [&](const Op* user) {
               return user != split_ && !ops_.contains(user);
             });
    });
  }

  TensorType PieceType(const Value* v, const Along& along, size_t i) const {
    TensorType type(v->type.dtype, v->type.shape);
    type.shape[along.dim] = sizes_[i] * along.unit;
    return type;
  }

  Attributes PieceAttributes(const Op& op, const std::vector<TensorType>& results, size_t i) const {
    const Along& along = along_.at(op.result(0));
    return AttributesOfPart(op, results, along.dim, starts_[i] * along.unit);
  }
  std::vector<TensorType> PieceTypes(const Op& op, size_t i) const {
    std::vector<TensorType> types;
    for (const Value* r : op.results) types.push_back(PieceType(r, along_.at(r), i));
    return types;
  }

  // Whether the op makes pieces of pieces.
  bool MakesPieces(const Op& op, const ShardingRule& rule, const FactorUnit& unit) const {
    for (size_t i = 0; i < sizes_.size(); ++i) {
      std::vector<TensorType> operands;
      for (size_t k = 0; k < op.operands.size(); ++k) {
        const auto there = Having(rule, rule.operands[k], unit);
        operands.push_back(there->dim < 0 ? op.in(static_cast<int>(k))
                                          : PieceType(op.operands[k], *there, i));
      }
      const std::vector<TensorType> pieces = PieceTypes(op, i);
      if (!Infers(*op.def, operands, PieceAttributes(op, pieces, i), pieces)) return false;
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
    // A piece has segments, or blocks of another size than its neighbours'.
    const int64_t granule =
        WantedLayout(split_->operands[0], dim, AxisList{axis}, graph_.mesh).granule;
    for (size_t i = 0; i < sizes_.size(); ++i) {
      const auto wanted = WantedLayout(split_->results[i], dim, AxisList{axis}, graph_.mesh);
      if (wanted != Canonical(sizes_[i], {{axis}, granule, {}}, graph_.mesh)) return true;
    }
    const auto parts = NarrowParts(split_->results, dim, graph_.mesh.axis_size(axis));
    const auto [least, most] = std::ranges::minmax(parts);
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

  // What makes piece i of the value. `made`: what of it is there.
  Value* Clone(Value* v, size_t i, std::map<const Value*, Value*>& made) {
    if (auto it = made.find(v); it != made.end()) return it->second;
    Op* op = v->producer;
    if (op->def->is_state) return made[v] = PieceOfParam(op, along_.at(v), i);
    if (ConstantOf(v)) {
      const auto [dim, unit] = along_.at(v);
      const int64_t start = starts_[i] * unit;
      Builder builder(graph_, split_, *op);
      return made[v] = builder.Slice(v, dim, start, start + sizes_[i] * unit);
    }
    std::vector<Value*> operands = op->operands;
    for (Value*& operand : operands) {
      if (along_.contains(operand)) operand = Clone(operand, i, made);
    }
    Builder builder(graph_, split_, *op);
    Op* piece = builder.Create(op->name(), std::move(operands),
                               PieceAttributes(*op, PieceTypes(*op, i), i));
    for (const Value* r : op->results) made[r] = piece->result(r->index);
    if (op->def->constrains) {
      piece->result()->type.sharding = PieceSharding(*op, along_.at(v));
      piece->result()->provenance = v->provenance;
    }
    return made.at(v);
  }

  static Sharding PieceSharding(const Op& op, const Along& along) {
    Sharding sharding = op.out().sharding;
    DimSharding& dim = sharding.dims[along.dim];
    dim = {dim.axes, 1, {}};
    return sharding;
  }

  Value* PieceOfParam(Op* param, const Along& along, size_t i) {
    const std::string name_before = param->attrs.String("name");
    const std::string whole = param->attrs.String("piece_of", name_before);
    const auto at = static_cast<size_t>(along.dim);
    const int64_t before = starts_[i] * along.unit,
                  start = param->attrs.Int("piece_start", 0) + before,
                  whole_size = param->attrs.Int("whole_size", param->out().shape[at]);
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
    if (auto source = graph_.sources.find(name_before); source != graph_.sources.end()) {
      graph_.sources[name] = std::make_shared<PieceSource>(source->second, at, before);
    }
    return piece->result();
  }

  Graph& graph_;
  Op* split_;
  std::vector<int64_t> sizes_, starts_;      // of the pieces, in the split's operand
  std::map<const Value*, Along> along_;      // what is taken apart, and how
  std::set<const Op*> ops_;                  // that make it,
  std::set<const Value*> whole_;             // and what these read besides
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
