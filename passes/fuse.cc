#include "passes/fuse.h"

#include "ir/op_def.h"

namespace shardc {
namespace {

Op* Replace(Graph& graph, Op* like, Op* before, std::string_view name, std::vector<Value*> operands,
            std::vector<TensorType> types, Attributes attrs) {
  Op* op =
      graph.AddOp(GetOpDef(name), std::move(operands), std::move(types), std::move(attrs), before);
  op->phase = like->phase;
  op->site = like->site;
  return op;
}

bool FuseBias(Graph& graph, Op* add) {
  for (int i : {0, 1}) {
    Value *product = add->operands[i], *bias = add->operands[1 - i];
    Op* matmul = product->producer;
    if (!matmul || (matmul->name() != "matmul" && matmul->name() != "matmul_nt")) continue;
    if (product->users.size() != 1 || graph.IsOutput(product)) continue;
    if (matmul->in(1).rank() != 2 || bias->type.shape != Shape{product->type.shape.back()})
      continue;
    if (product->type != add->out() || product->type.sharding.partial()) continue;
    Op* linear =
        Replace(graph, matmul, add, "linear", {matmul->operands[0], matmul->operands[1], bias},
                {add->out()}, {{"nt", matmul->name() == "matmul_nt"}});
    graph.ReplaceAllUses(add->result(), linear->result());
    return true;
  }
  return false;
}

bool FuseResidual(Graph& graph, Op* norm) {
  Op* add = norm->operands[0]->producer;
  if (!add || add->name() != "add" || add->in(0) != add->out() || add->in(1) != add->out()) {
    return false;
  }
  if (add->phase != norm->phase) return false;
  // Whatever reads the sum must come after the norm's place.
  for (Op* o = graph.Next(add); o && o != norm; o = graph.Next(o)) {
    for (const Value* v : o->operands) {
      if (v == add->result()) return false;
    }
  }
  std::vector<Value*> operands = add->operands;
  operands.insert(operands.end(), norm->operands.begin() + 1, norm->operands.end());
  std::vector<TensorType> types = {add->out()};
  for (const Value* r : norm->results) types.push_back(r->type);
  Op* fused = Replace(graph, norm, norm, "add_layer_norm", operands, types, norm->attrs);
  graph.ReplaceAllUses(add->result(), fused->result(0));
  for (size_t i = 0; i < norm->results.size(); ++i) {
    graph.ReplaceAllUses(norm->results[i], fused->result(static_cast<int>(i) + 1));
  }
  return true;
}

}  // namespace

void Fuse(Graph& graph) {
  graph.EraseDead();
  for (auto it = graph.ops().begin(); it != graph.ops().end();) {
    Op* op = (it++)->get();
    if (op->name() == "add") FuseBias(graph, op);
    if (op->name() == "layer_norm") FuseResidual(graph, op);
  }
  graph.EraseDead();
}

}  // namespace shardc
