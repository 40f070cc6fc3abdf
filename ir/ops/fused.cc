// Ops that the fuse pass makes of several others on the lowered graph, where a kernel does them in
// one pass over memory.
#include <algorithm>

#include "ir/op_def.h"
#include "ir/ops/infer_util.h"
#include "ir/ops/reference_floats.h"

namespace shardc {
namespace {

const OpDef& Def(std::string_view name) { return GetOpDef(name); }

Op* Replace(Graph& graph, Op& root, std::string_view name, const Op& like,
            std::vector<Value*> operands, std::vector<TensorType> types, Attributes attrs) {
  return graph.AddOp(Def(name), std::move(operands), std::move(types), std::move(attrs), &root,
                     like);
}

// matmul and the add of a bias.
bool FuseLinear(Graph& graph, Op& add) {
  for (int i : {0, 1}) {
    Value *product = add.operands[i], *bias = add.operands[1 - i];
    const Op* matmul = product->producer;
    if (!matmul || (matmul->name() != "matmul" && matmul->name() != "matmul_nt")) continue;
    // Not one that is added to something already, or of rows that are longer than what counts.
    if (matmul->operands.size() != 2 || matmul->attrs.Has("cols") || matmul->attrs.Has("length"))
      continue;
    if (!matmul->RunsWith(add)) continue;
    if (!graph.OnlyUser(product)) continue;
    if (matmul->in(1).rank() != 2 || bias->type.shape != Shape{product->type.shape.back()})
      continue;
    if (product->type != add.out() || product->type.sharding.partial()) continue;
    Attributes attrs = {{"nt", matmul->name() == "matmul_nt"}};
    if (const Attribute* out = matmul->attrs.Find("out")) attrs.Set("out", *out);
    Op* linear =
        Replace(graph, add, "linear", *matmul, {matmul->operands[0], matmul->operands[1], bias},
                {add.out()}, std::move(attrs));
    graph.ReplaceAllUses(add.result(), linear->result());
    return true;
  }
  return false;
}

OpDef LinearDef() {
  OpDef def;
  def.name = "linear";
  def.min_operands = def.max_operands = 3;
  def.attrs = {{"nt", AttrKind::kBool}, {"out", AttrKind::kString}};
  def.fuses_at = "add";
  def.fuse = FuseLinear;
  def.typed_result = 0;
  def.cpu_halves = CpuHalves::kBf16;
  def.precision = Precision::kCompute;
  def.infer = [](const InferArgs& args) {
    const TensorType* parts[] = {args.operands[0], args.operands[1]};
    auto out = Def(args.attrs.Bool("nt") ? "matmul_nt" : "matmul").infer({parts, Attributes()});
    DType type = OutType("linear", args.attrs, out[0].dtype);
    bool typed = args[2].dtype == out[0].dtype || args[2].dtype == type;
    if (args[1].rank() != 2 || args[2].shape != Shape{out[0].shape.back()} || !typed) {
      InferError("linear", StrCat("needs a weight of two dims and a bias of [", out[0].shape.back(),
                                  "] in the type of the operands or of the result"));
    }
    out[0].dtype = type;
    return out;
  };
  // The contraction is whole: a partial product must be summed before the bias is added.
  def.rule = [](const Op& op) {
    return EinsumRule(
        op, op.attrs.Bool("nt") ? "... k!, n k!, n -> ... n" : "... k!, k! n, n -> ... n");
  };
  def.no_gradient = kMadeByFuse;
  def.flops = [](const Op& op) {
    return 2 * op.out().num_elements() * op.in(0).shape.back() + op.out().num_elements();
  };
  def.work_bytes = [](const Op& op) {
    return Def(op.attrs.Bool("nt") ? "matmul_nt" : "matmul").work_bytes(op);
  };
  def.keeps_zero_padding = false;
  def.reference = [](const KernelCall& call) {
    // In double, so that the product is rounded once, with the bias.
    std::vector<double> product(static_cast<size_t>(call.out[0].num_elements()));
    RunPart(call.attrs->Bool("nt") ? "matmul_nt" : "matmul", call, Attributes(),
            {call.in[0], call.in[1]}, {ViewOf(product, call.out[0])});
    std::vector<double> bias = ToDoubles(call.in[2]);
    for (size_t i = 0; i < product.size(); ++i) product[i] += bias[i % bias.size()];
    FromDoubles(product, call.out[0]);
  };
  return def;
}

// Whether it is, or was, of a half type.
bool MayBeNarrow(const Value& v) {
  const Op* op = v.producer;
  if (!op || op->operands.empty() || !IsHalf(op->in(0).dtype)) return false;
  return op->name() == "cast" || op->def->typed_result == v.index;
}

// The sum stays a result: the next residual needs it.
bool FuseAddLayerNorm(Graph& graph, Op& norm) {
  Op* add = norm.operands[0]->producer;
  if (!add || add->name() != "add" || add->in(0) != add->out() || add->in(1) != add->out()) {
    return false;
  }
  if (add->phase != norm.phase || !add->RunsWith(norm)) return false;
  if (std::count(norm.operands.begin(), norm.operands.end(), add->result()) > 1) return false;
  // Whatever reads the sum must come after the norm's place.
  for (Op* o = graph.Next(add); o && o != &norm; o = graph.Next(o)) {
    for (const Value* v : o->operands) {
      if (v == add->result()) return false;
    }
  }
  std::vector<Value*> operands = add->operands;
  // The second one may be narrow.
  if (MayBeNarrow(*operands[0]) && !MayBeNarrow(*operands[1])) {
    std::swap(operands[0], operands[1]);
  }
  operands.insert(operands.end(), norm.operands.begin() + 1, norm.operands.end());
  std::vector<TensorType> types = {add->out()};
  for (const Value* r : norm.results) types.push_back(r->type);
  Op* fused = Replace(graph, norm, "add_layer_norm", norm, operands, types, norm.attrs);
  graph.ReplaceAllUses(add->result(), fused->result(0));
  for (size_t i = 0; i < norm.results.size(); ++i) {
    graph.ReplaceAllUses(norm.results[i], fused->result(static_cast<int>(i) + 1));
  }
  return true;
}

OpDef AddLayerNormDef() {
  OpDef def;
  def.name = "add_layer_norm";
  def.min_operands = 2;
  def.max_operands = 4;
  def.attrs = {{"eps", AttrKind::kFloat, true}, {"out", AttrKind::kString}};
  def.fuses_at = "layer_norm";
  def.fuse = FuseAddLayerNorm;
  def.typed_result = 1;
  def.narrow_operands = {1};
  def.cpu_halves = CpuHalves::kBf16Result;
  def.infer = [](const InferArgs& args) {
    RequireNarrowTensor("add_layer_norm", args[1], args[0].dtype, args[0].shape, "what is added");
    std::vector<const TensorType*> norm = {args.operands[0]};
    norm.insert(norm.end(), args.operands.begin() + 2, args.operands.end());
    auto out = Def("layer_norm").infer({norm, args.attrs});
    out.insert(out.begin(), TensorType(args[0].dtype, args[0].shape));
    return out;
  };
  def.rule = [](const Op& op) {
    std::string text = "... h!, ... h!";
    for (size_t i = 2; i < op.operands.size(); ++i) text += ", h!";
    return EinsumRule(op, text + " -> ... h!, ... h!, ..., ...");
  };
  def.no_gradient = kMadeByFuse;
  def.flops = [](const Op& op) { return 9 * op.out().num_elements(); };
  def.reference = [](const KernelCall& call) {
    std::vector<double> sum = ToDoubles(call.in[0]);
    const std::vector<double> added = ToDoubles(call.in[1]);
    for (size_t i = 0; i < sum.size(); ++i) sum[i] += added[i];
    FromDoubles(sum, call.out[0]);
    std::vector<TensorView> norm = {call.out[0]};
    norm.insert(norm.end(), call.in.begin() + 2, call.in.end());
    RunPart("layer_norm", call, *call.attrs, norm, {call.out[1], call.out[2], call.out[3]});
  };
  return def;
}

}  // namespace

void RegisterFusedNormGradOps(OpRegistry& registry);    // fused_norm_grad.cc
void RegisterFusedLossOps(OpRegistry& registry);        // fused_loss.cc
void RegisterPackedAttentionOps(OpRegistry& registry);  // packed_attention.cc

void RegisterFusedOps(OpRegistry& registry) {
  registry.Add(LinearDef());
  registry.Add(AddLayerNormDef());
  RegisterFusedNormGradOps(registry);
  RegisterFusedLossOps(registry);
  RegisterPackedAttentionOps(registry);
}

}  // namespace shardc
