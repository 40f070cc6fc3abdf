#include "passes/accumulate.h"

#include <algorithm>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "ir/builder.h"
#include "ir/diagnostic.h"
#include "ir/op_def.h"
#include "passes/batch_input.h"
#include "passes/infers.h"
#include "passes/numbering.h"

namespace shardc {
namespace {

class Accumulation {
 public:
  Accumulation(Graph& graph, const MicrobatchSpec& spec, Value* loss)
      : graph_(graph), spec_(spec), loss_(loss), batch_(BatchInput(graph, spec)->type.shape[0]) {}

  Value* Run() {
    FindOps();
    end_ = graph_.Next(ops_.back());
    for (int m = spec_.count; m-- > 0;) {
      for (const Op* op : ops_) Copy(*op, m);
    }
    PutTogether();
    for (Value* input : held_) Widen(*input);
    graph_.EraseDead();
    return loss_;
  }

 private:
  void FindOps() {
    std::unordered_set<const Value*> of_batch;
    for (const auto& input : graph_.inputs()) {
      const Shape& shape = input->type.shape;
      if (shape.empty() || shape[0] != batch_) continue;
      held_.push_back(input.get());
      of_batch.insert(input.get());
    }
    for (const auto& op : graph_.ops()) {
      auto is = [&](const Value* v) { return of_batch.contains(v); };
      const bool draws = IsRandom(*op);
      if (draws) streams_ = std::max(streams_, op->attrs.Int("stream", 0) + 1);
      // What is drawn is drawn anew for each batch, also where nothing else of it counts.
      if (!draws && std::ranges::none_of(op->operands, is)) continue;
      ops_.push_back(op.get());
      of_batch.insert(op->results.begin(), op->results.end());
    }
  }

  // What the op is of batch m.
  void Copy(const Op& op, int m) {
    std::vector<Value*> operands;
    std::vector<TensorType> types;
    for (Value* v : op.operands) operands.push_back(Of(v, m, op));
    for (const Value* r : op.results) types.push_back(r->type);
    Op* copy =
        graph_.AddOp(*op.def, std::move(operands), types, AttributesOf(op, types, m), end_, op);
    copy->microbatch = m;
    for (size_t i = 0; i < op.results.size(); ++i) {
      copy->results[i]->provenance = op.results[i]->provenance;
      std::vector<Value*>& all = copies_[op.results[i]];
      all.resize(spec_.count);
      all[m] = copy->results[i];
    }
  }

  Value* Of(Value* v, int m, const Op& reader) {
    if (std::ranges::find(held_, v) != held_.end()) return BatchesOf(v, reader)[m];
    const auto it = copies_.find(v);
    return it == copies_.end() ? v : it->second[m];
  }

  const std::vector<Value*>& BatchesOf(Value* input, const Op& reader) {
    std::vector<Value*>& batches = copies_[input];
    if (!batches.empty()) return batches;
    TensorType type = input->type;
    type.sharding = Sharding(type.shape.size());
    const Op* split =
        graph_.AddOp(GetOpDef("split"), {input}, std::vector<TensorType>(spec_.count, type),
                     {{"axis", int64_t{0}}, {"sizes", Ints(spec_.count, batch_)}}, end_, reader);
    batches = split->results;
    for (Value* v : batches) v->provenance = input->provenance;
    return batches;
  }

  Attributes AttributesOf(const Op& op, const std::vector<TensorType>& types, int m) const {
    auto has = [&](std::string_view name) {
      return std::ranges::any_of(op.def->attrs, [&](const auto& a) { return a.name == name; });
    };
    Attributes attrs = op.attrs;
    // Where it is in all batches, for messages.
    if (has("origin") && !has("whole") && !types[0].shape.empty()) {
      attrs = AttributesOfPart(op, types, 0, m * types[0].shape[0]);
    }
    if (IsRandom(op)) attrs.Set("stream", op.attrs.Int("stream", 0) + m * streams_);
    return attrs;
  }

  void PutTogether() {
    std::vector<Value*> given;
    for (const Output& o : graph_.outputs) given.push_back(o.value);
    if (loss_) given.push_back(loss_);
    std::unordered_map<const Value*, Value*> done;
    for (size_t i = 0; i < given.size(); ++i) {
      Value* v = given[i];
      if (!v->producer || !copies_.contains(v) || done.contains(v)) continue;
      const std::string name = i < graph_.outputs.size() ? graph_.outputs[i].name : "loss";
      Value* all = done[v] = v->type.rank() > 0 ? OneBehindTheOther(v) : Mean(v, name);
      all->name = v->name;
      graph_.outputs.Replace(v, all);
      if (v == loss_) loss_ = all;
    }
  }

  Value* OneBehindTheOther(const Value* v) {
    Builder b(graph_, end_, *v->producer);
    return Said(v, b.Make("concat", copies_.at(v), {{"axis", int64_t{0}}}));
  }

  Value* Mean(const Value* v, const std::string& name) {
    if (!IsFloat(v->type.dtype)) {
      throw Diagnostic("E2111", ExitCode::kBadSpec, spec_.where,
                       StrCat("output '", name, "' is ", TypeToString(v->type, graph_.mesh),
                              ", of which ", spec_.count, " batches have no mean"),
                       "leave it out with --drop " + name);
    }
    Builder b(graph_, end_, *v->producer);
    const std::vector<Value*>& values = copies_.at(v);
    Value* sum = Said(v, values[0]);
    for (size_t m = 1; m < values.size(); ++m) sum = Said(v, b.Add(sum, values[m]));
    return Said(v, b.Div(sum, b.Scalar(v->type.dtype, spec_.count)));
  }

  static Value* Said(const Value* of, Value* made) {
    made->provenance = of->provenance;
    return made;
  }

  // To all batches, of each of which a rank has its part.
  void Widen(Value& input) const {
    input.type.shape[0] *= spec_.count;
    DimSharding& dim = input.type.sharding.dims[0];
    if (dim.cut()) dim.segments.assign(spec_.count, batch_);
  }

  Graph& graph_;
  const MicrobatchSpec& spec_;
  Value* loss_;
  int64_t batch_;
  std::vector<Value*> held_;  // inputs of the batch
  std::vector<Op*> ops_;      // what depends on them, in order
  int64_t streams_ = 0;       // more than those of all that draws
  Op* end_ = nullptr;         // before it the copies stand
  std::unordered_map<const Value*, std::vector<Value*>> copies_;  // by batch
};

}  // namespace

Value* AccumulateBatches(Graph& graph, const MicrobatchSpec& spec, Value* loss) {
  if (spec.count <= 1) return loss;
  graph.EraseDead();
  return Accumulation(graph, spec, loss).Run();
}

}  // namespace shardc
