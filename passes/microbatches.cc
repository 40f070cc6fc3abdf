#include "passes/microbatches.h"

#include <algorithm>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "ir/builder.h"
#include "ir/diagnostic.h"
#include "ir/op_def.h"
#include "passes/batch_input.h"
#include "passes/piecewise.h"
#include "passes/provenance.h"

namespace shardc {
namespace {

class Cutting {
 public:
  Cutting(Graph& graph, const MicrobatchSpec& spec, Value* loss)
      : graph_(graph),
        spec_(spec),
        count_(spec.count),
        loss_(loss),
        chain_(graph, BatchInput(graph, spec), 0, spec.count) {
    graph.NumberOps();
    for (const auto& op : graph.ops()) {
      const bool weight = op->def->is_state && IsFloat(op->out().dtype);
      if (weight || ReadsAny(*op, learned_)) {
        learned_.insert(op->results.begin(), op->results.end());
      }
    }
  }

  Value* loss() const { return loss_; }

  // False: an op had to be made of others, and all begins again.
  bool Grow() {
    for (size_t i = 0; i < chain_.cut().size(); ++i) {
      Value* v = chain_.cut()[i];
      Op* maker = v->producer;
      if (maker && !maker->operands.empty()) Take(maker);
      for (Op* user : std::vector<Op*>(v->users)) {
        if (Take(user) || !Learned(*user)) continue;
        if (!user->def->expand) {
          throw Mixes(StrCat(Describe(*user),
                             " mixes the examples of a batch: ", TypeToString(v->type, graph_.mesh),
                             " cannot come in ", count_, " microbatches"));
        }
        Expand(user);
        return false;
      }
    }
    return true;
  }

  Value* Run() {
    FindLate();
    CheckChain();
    CheckLoss();
    if (chain_.ops().empty()) {
      throw Mixes(StrCat("no op of the model can run on ", count_, " pieces of the batch"));
    }
    CutInputs();
    Copy();
    PutTogether();
    graph_.EraseDead();
    return loss_;
  }

 private:
  using Values = std::unordered_set<const Value*>;

  static bool ReadsAny(const Op& op, const Values& values) {
    return std::any_of(op.operands.begin(), op.operands.end(),
                       [&](const Value* v) { return values.contains(v); });
  }

  bool Learned(const Op& op) const {
    return !op.results.empty() && learned_.contains(op.results[0]);
  }

  // What depends on no weight is summed whole.
  bool Take(Op* op) { return chain_.Include(op, Learned(*op)); }

  Diagnostic Mixes(std::string what) const {
    return Diagnostic("E2111", ExitCode::kBadSpec, spec_.where, std::move(what),
                      "leave it out, or change the model");
  }

  void Expand(Op* op) {
    Builder b(graph_, op, *op);
    const std::vector<Value*> values = op->def->expand(b, *op);
    for (size_t i = 0; i < values.size(); ++i) {
      values[i]->provenance = op->results[i]->provenance;
      values[i]->name = op->results[i]->name;
      if (loss_ == op->results[i]) loss_ = values[i];
      graph_.ReplaceAllUses(op->results[i], values[i]);
    }
    graph_.Erase(op);
  }

  // Sums over all pieces, what is made of them, and what becomes of the states.
  void FindLate() {
    for (const auto& op : graph_.ops()) {
      if (chain_.Contains(op.get())) {
        for (const Value* r : op->results) {
          if (chain_.DimOf(r) < 0) late_.insert(r);
        }
      } else if (ReadsAny(*op, op->results.empty() ? learned_ : late_)) {
        late_.insert(op->results.begin(), op->results.end());
        late_ops_.push_back(op.get());
      }
    }
  }

  void CheckChain() const {
    for (const Op* op : chain_.ops()) {
      for (const Value* v : op->operands) {
        if (!late_.contains(v)) continue;
        throw Mixes(StrCat(Describe(*op), " needs for each example what ", Describe(*v->producer),
                           " makes of all of them"));
      }
    }
    if (const Op* op = chain_.Unfit(count_)) {
      throw Mixes(StrCat(Describe(*op), " cannot run on ", count_, " pieces of the batch"));
    }
  }

  void CheckLoss() const {
    if (!loss_) return;
    if (chain_.DimOf(loss_) >= 0 || !late_.contains(loss_)) {
      throw Mixes("the loss is no sum over the examples of the batch");
    }
    Values needed = {loss_};
    for (auto it = late_ops_.rbegin(); it != late_ops_.rend(); ++it) {
      const Op& op = **it;
      const bool counts = std::any_of(op.results.begin(), op.results.end(),
                                      [&](const Value* r) { return needed.contains(r); });
      if (!counts) continue;
      if (!LinearInLate(op)) {
        throw Diagnostic(
            "E2111", ExitCode::kBadSpec, spec_.where,
            StrCat("the loss is no sum over the examples of the batch: ", Describe(op),
                   " is not linear in what it reads of it, and its gradients need ",
                   "all microbatches at once"),
            "leave it out, or that term out of the loss, or use --accumulate for the mean over "
            "batches of which each has a loss of its own");
      }
      needed.insert(op.operands.begin(), op.operands.end());
    }
  }

  bool LinearInLate(const Op& op) const {
    if (!op.def->rule) return false;
    const ShardingRule rule = op.def->rule(op);
    return std::any_of(rule.linear.begin(), rule.linear.end(), [&](const std::vector<int>& group) {
      for (size_t i = 0; i < op.operands.size(); ++i) {
        const bool in = std::find(group.begin(), group.end(), static_cast<int>(i)) != group.end();
        if (!in && late_.contains(op.operands[i])) return false;
      }
      return true;
    });
  }

  void CutInputs() {
    for (const auto& input : graph_.inputs()) {
      const int d = chain_.DimOf(input.get());
      if (d < 0) continue;
      const int64_t size = input->type.shape[d] / count_;
      DimSharding& dim = input->type.sharding.dims[d];
      if (!dim.cut()) continue;
      if (const int64_t parts = NumParts(dim, graph_.mesh); size < parts) {
        const int64_t most = size * count_ / parts;
        throw BadCount(
            spec_,
            StrCat("a microbatch has ", size, " of the ", size * count_, " examples of input '",
                   input->name, "', fewer than the ", parts, " ranks that share it"),
            StrCat(most > 1    ? StrCat("at most ", most, " microbatches, or ")
                   : most == 1 ? "1 microbatch, or "
                               : "",
                   "fewer ranks"));
      }
      dim.segments.assign(count_, size);
    }
  }

  // The pieces of a value that the chain only reads.
  const std::vector<Value*>& PiecesOf(Value* v, const Op& reader) {
    std::vector<Value*>& pieces = pieces_[v];
    if (!pieces.empty()) return pieces;
    const auto d = static_cast<size_t>(chain_.DimOf(v));
    TensorType type = v->type;
    type.shape[d] /= count_;
    type.sharding = Sharding(type.shape.size());
    Op* split = graph_.AddOp(
        GetOpDef("split"), {v}, std::vector<TensorType>(count_, type),
        {{"axis", static_cast<int64_t>(d)}, {"sizes", Ints(count_, type.shape[d])}}, end_);
    split->BelongWith(v->producer ? *v->producer : reader);
    pieces = split->results;
    for (Value* p : pieces) p->provenance = v->provenance;
    return pieces;
  }

  void Copy() {
    end_ = graph_.Next(chain_.ops().back());
    const int64_t units = chain_.units() / count_;
    for (int m = count_; m-- > 0;) {
      for (const Op* op : chain_.ops()) {
        auto piece_of = [&](Value* v) {
          const bool made = v->producer && chain_.Contains(v->producer);
          return (made ? pieces_[v] : PiecesOf(v, *op))[m];
        };
        Op* piece = chain_.AddPiece(*op, m * units, units, piece_of, end_);
        piece->microbatch = m;
        for (size_t k = 0; k < op->results.size(); ++k) {
          std::vector<Value*>& all = pieces_[op->results[k]];
          all.resize(count_);
          all[m] = piece->results[k];
        }
      }
    }
  }

  void PutTogether() {
    const std::vector<Op*> ops = chain_.ops();
    for (const Op* op : ops) {
      if (!Learned(*op)) continue;  // who needs it whole keeps it whole
      for (Value* r : op->results) {
        if (!chain_.ReadOutside(r)) continue;
        Value* whole = chain_.DimOf(r) < 0 ? Sum(r) : Concat(r);
        whole->name = r->name;
        if (loss_ == r) loss_ = whole;
        graph_.ReplaceAllUses(r, whole);
      }
    }
    for (Op* op : late_ops_) {
      if (op->id < ops.back()->id) graph_.MoveBefore(op, end_);
    }
  }

  Value* Concat(const Value* r) {
    return Make("concat", r, pieces_[r], Whole(r), {{"axis", int64_t{chain_.DimOf(r)}}});
  }

  Value* Sum(const Value* r) {
    const std::vector<Value*>& pieces = pieces_[r];
    Value* sum = pieces[0];
    for (size_t m = 1; m < pieces.size(); ++m) {
      sum = Make("add", r, {sum, pieces[m]}, sum->type);
    }
    if (sum->type.dtype == r->type.dtype) return sum;
    return Make("cast", r, {sum}, Whole(r), {{"to", std::string(DTypeName(r->type.dtype))}});
  }

  static TensorType Whole(const Value* v) { return {v->type.dtype, v->type.shape}; }

  Value* Make(const char* op, const Value* result, std::vector<Value*> pieces, TensorType type,
              Attributes attrs = {}) {
    return chain_.MakeFor(result, op, std::move(pieces), std::move(type), std::move(attrs), end_);
  }

  Graph& graph_;
  const MicrobatchSpec& spec_;
  const int count_;
  Value* loss_;
  Piecewise chain_;
  Values learned_;             // depends on a weight
  Values late_;                // depends on a sum over the pieces
  std::vector<Op*> late_ops_;  // outside of the chain, in order
  std::unordered_map<const Value*, std::vector<Value*>> pieces_;
  Op* end_ = nullptr;  // before it the pieces stand
};

}  // namespace

Value* CutMicrobatches(Graph& graph, const MicrobatchSpec& spec, Value* loss) {
  if (spec.count <= 1) return loss;
  graph.EraseDead();
  const Value* input = BatchInput(graph, spec);
  if (const int64_t batch = input->type.shape[0]; batch % spec.count != 0) {
    throw BadCount(spec,
                   StrCat(spec.count, " microbatches do not divide the ", batch,
                          " examples of input '", input->name, "'"),
                   StrCat("use a divisor of ", batch, ", or another batch"));
  }
  for (;;) {
    Cutting cutting(graph, spec, loss);
    if (cutting.Grow()) return cutting.Run();
    loss = cutting.loss();
  }
}

}  // namespace shardc
