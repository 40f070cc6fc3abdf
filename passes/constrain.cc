#include "passes/constrain.h"

#include "ir/op_def.h"

namespace shardc {

Op* Constrain(Graph& graph, Value* value, Sharding sharding, Strings axes, std::string why) {
  Op* op = graph.AddOp(GetOpDef("sharding_constraint"), {},
                       {TensorType(value->type.dtype, value->type.shape, std::move(sharding))},
                       {{"axes", std::move(axes)}, {"why", Strings{std::move(why)}}},
                       graph.Next(value->producer), *value->producer);
  graph.ReplaceAllUses(value, op->result());
  graph.AppendOperand(op, value);
  return op;
}

}  // namespace shardc
