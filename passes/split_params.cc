#include "passes/split_params.h"

#include <algorithm>
#include <map>

#include "ir/builder.h"
#include "ir/diagnostic.h"
#include "ir/op_def.h"
#include "passes/layout.h"
#include "passes/split_axes.h"

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

// One split, and what it takes apart, back to the parameters.
class Splitter {
 public:
  Splitter(Graph& graph, Op* split) : graph_(graph), split_(split) {}

  // Whether anything was changed.
  bool Run() {
    ShardingRule rule = split_->def->rule(*split_);
    int dim = -1;
    for (size_t d = 0; split_->operands.size() == 1 && d < rule.operands[0].size(); ++d) {
      if (!rule.operands[0][d].segments.empty()) dim = static_cast<int>(d);
    }
    if (dim < 0) return false;
    sizes_ = rule.operands[0][static_cast<size_t>(dim)].segments;
    if (sizes_.size() != split_->results.size()) return false;
    if (!Collect(split_->operands[0], dim) || !CutsDiffer(dim)) return false;
    for (size_t i = 0; i < sizes_.size(); ++i)
      pieces_.push_back(Clone(split_->operands[0], dim, i));
    for (size_t i = 0; i < sizes_.size(); ++i) {
      if (!pieces_[i]->type.SameTensor(split_->result(static_cast<int>(i))->type)) return Undo();
    }
    for (size_t i = 0; i < sizes_.size(); ++i) {
      graph_.ReplaceAllUses(split_->result(static_cast<int>(i)), pieces_[i]);
    }
    for (auto& [param, at] : params_) graph_.sources.erase(param->attrs.String("name"));
    graph_.EraseDead();
    return true;
  }

 private:
  // Parameters and ops whose only purpose is the value, from which the dim can be taken apart.
  bool Collect(Value* v, int dim) {
    Op* op = v->producer;
    if (!op || v->users.size() != 1 || graph_.IsOutput(v)) return false;
    if (op->def->is_state) {
      params_.emplace_back(op, dim);
      return true;
    }
    if (!op->def->rule || op->results.size() != 1) return false;
    ShardingRule rule = op->def->rule(*op);
    const DimFactors& factors = rule.results[0][static_cast<size_t>(dim)];
    if (factors.factors.size() != 1 || !factors.segments.empty()) return false;
    if (rule.factors[factors.factors[0]].kind != FactorKind::kPlain) return false;
    bool any = false;
    for (size_t i = 0; i < op->operands.size(); ++i) {
      int d = DimOfFactor(rule.operands[i], factors.factors[0]);
      if (d < 0) continue;
      const DimFactors& there = rule.operands[i][static_cast<size_t>(d)];
      if (there.factors.size() != 1 || !there.segments.empty()) return false;
      if (!Collect(op->operands[i], d)) return false;
      any = true;
    }
    return any;
  }

  // Whether the axis that cuts the parameters can cut the pieces in numbers of parts that differ.
  bool CutsDiffer(int dim) const {
    int axis = -1;
    for (const auto& [param, at] : params_) {
      const DimSharding& cut = param->out().sharding.dims[static_cast<size_t>(at)];
      if (!cut.cut()) continue;
      if (cut.axes.size() != 1 || (axis >= 0 && cut.axes[0] != axis)) return false;
      axis = cut.axes[0];
    }
    if (axis < 0) return false;
    int64_t least = graph_.mesh.axis_size(axis), most = 0;
    for (Value* piece : split_->results) {
      int64_t parts = NarrowParts(piece, dim, graph_.mesh.axis_size(axis));
      least = std::min(least, parts);
      most = std::max(most, parts);
    }
    return least < most;
  }

  // What makes piece i of the value.
  Value* Clone(Value* v, int dim, size_t i) {
    Value*& made = clones_[{v, i}];
    if (made) return made;
    Op* op = v->producer;
    if (op->def->is_state) return made = PieceOfParam(op, dim, i);
    ShardingRule rule = op->def->rule(*op);
    const int factor = rule.results[0][static_cast<size_t>(dim)].factors[0];
    std::vector<Value*> operands = op->operands;
    for (size_t k = 0; k < operands.size(); ++k) {
      int d = DimOfFactor(rule.operands[k], factor);
      if (d >= 0) operands[k] = Clone(operands[k], d, i);
    }
    Builder builder(graph_, split_);
    builder.site = op->site;
    made = builder.Make(op->name(), std::move(operands), op->attrs);
    made_.push_back(made->producer);
    return made;
  }

  Value* PieceOfParam(Op* param, int dim, size_t i) {
    const std::string& whole = param->attrs.String("name");
    TensorType type = param->out();
    const auto at = static_cast<size_t>(dim);
    int64_t start = 0;
    for (size_t k = 0; k < i; ++k) start += sizes_[k];
    const int64_t whole_size = type.shape[at];
    type.shape[at] = sizes_[i];
    type.sharding.dims[at] = DimSharding{type.sharding.dims[at].axes, 1, {}};
    Attributes attrs = param->attrs;
    const std::string name = StrCat(whole, "[", start, ":", start + sizes_[i], "]");
    attrs.Set("name", name);
    attrs.Set("piece_of", whole);
    attrs.Set("piece_dim", int64_t{dim});
    attrs.Set("piece_start", start);
    attrs.Set("whole_size", whole_size);
    Op* piece = graph_.AddOp(*param->def, {}, {type}, std::move(attrs), param);
    piece->site = param->site;
    piece->result()->provenance = param->result()->provenance;
    piece->result()->name = param->result()->name;
    if (auto source = graph_.sources.find(whole); source != graph_.sources.end()) {
      graph_.sources[name] = std::make_shared<PieceSource>(source->second, at, start);
    }
    made_.push_back(piece);
    return piece->result();
  }

  // An op on the way is tied to the size of the whole by its attributes.
  bool Undo() {
    for (auto it = made_.rbegin(); it != made_.rend(); ++it) {
      if ((*it)->def->is_state) graph_.sources.erase((*it)->attrs.String("name"));
      graph_.Erase(*it);
    }
    return false;
  }

  Graph& graph_;
  Op* split_;
  std::vector<int64_t> sizes_;
  std::vector<std::pair<Op*, int>> params_;  // and the dim that is split
  std::map<std::pair<Value*, size_t>, Value*> clones_;
  std::vector<Op*> made_;
  std::vector<Value*> pieces_;
};

}  // namespace

void SplitParams(Graph& graph) {
  std::vector<Op*> splits;
  for (const auto& op : graph.ops()) {
    if (op->def->rule && op->results.size() > 1) splits.push_back(op.get());
  }
  for (Op* split : splits) Splitter(graph, split).Run();
}

}  // namespace shardc
