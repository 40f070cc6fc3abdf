// Ops that change where values are, never what they are. Their types are given by who makes them.
#include "ir/op_def.h"
#include "ir/ops/infer_util.h"
#include "ir/ops/reference_floats.h"

namespace shardc {
namespace {

TensorType Whole(const TensorType& type) { return TensorType(type.dtype, type.shape); }

void RequireDim(std::string_view op, const InferArgs& args, std::string_view attribute) {
  int64_t dim = args.attrs.Int(attribute, -1);
  if (dim < 0 || dim >= args[0].rank()) {
    InferError(op, StrCat(attribute, " ", dim, " is not a dim of ", ShapeToString(args[0].shape)));
  }
}

void RequireAxes(std::string_view op, const Attributes& attrs) {
  if (!attrs.Has("axes") || attrs.StringList("axes").empty()) {
    InferError(op, "names no mesh axis in its attribute 'axes'");
  }
}

// Why the op is there, and for which op.
void AddExplanation(OpDef& def) {
  def.attrs.push_back({"why", AttrKind::kStrings});
  def.attrs.push_back({"for", AttrKind::kString});
}

constexpr Lies kWhole{Lies::kWhole}, kPartial{Lies::kPartial};
constexpr Lies Cut(std::string_view dim) { return {Lies::kCut, dim}; }

// An op with one operand. The dims that it moves axes from or to are attributes.
OpDef MoveDef(std::string_view name, std::optional<Movement> moves, bool communicates) {
  OpDef def;
  def.name = name;
  def.moves = moves;
  std::vector<std::string_view> dims;
  for (const Lies& lies : moves ? std::vector{moves->from, moves->to} : std::vector<Lies>()) {
    if (lies.kind == Lies::kCut) dims.push_back(lies.dim);
  }
  def.attrs = {{"axes", AttrKind::kStrings, true}};
  AddExplanation(def);
  for (std::string_view dim : dims) def.attrs.push_back({dim, AttrKind::kInt, true});
  def.infer = [name, dims](const InferArgs& args) {
    RequireAxes(name, args.attrs);
    for (std::string_view dim : dims) RequireDim(name, args, dim);
    return std::vector<TensorType>{Whole(args[0])};
  };
  def.no_gradient = "placed by sharding, which comes after differentiation";
  def.flops = NoFlops;
  def.communicates = communicates;
  def.keeps_zero_padding = true;
  return def;
}

OpDef AllReduceDef() {
  OpDef def = MoveDef("all_reduce", Movement{kPartial, kWhole}, true);
  def.max_operands = -1;
  def.in_place = [](int operand, int result) { return operand == result; };
  def.attrs.push_back({"reduce", AttrKind::kString});
  def.infer = [](const InferArgs& args) {
    RequireAxes("all_reduce", args.attrs);
    std::string reduce = args.attrs.String("reduce", "sum");
    if (reduce != "sum" && reduce != "max") {
      InferError("all_reduce", StrCat("reduce is \"sum\" or \"max\", not \"", reduce, "\""));
    }
    std::vector<TensorType> results;
    for (size_t i = 0; i < args.size(); ++i) {
      RequireDType("all_reduce", args[i], args[0].dtype, StrCat("operand ", i));
      results.push_back(Whole(args[i]));
    }
    return results;
  };
  return def;
}

// From stage `from` of a pipeline over the axis to stage `to`.
OpDef SendRecvDef() {
  OpDef def = MoveDef("send_recv", Movement{kWhole, kWhole}, true);
  def.attrs.push_back({"from", AttrKind::kInt, true});
  def.attrs.push_back({"to", AttrKind::kInt, true});
  def.infer = [](const InferArgs& args) {
    RequireAxes("send_recv", args.attrs);
    const int64_t from = args.attrs.Int("from", -1), to = args.attrs.Int("to", -1);
    if (from < 0 || to < 0 || from == to) {
      InferError("send_recv", StrCat("goes from stage ", from, " to stage ", to));
    }
    return std::vector<TensorType>{Whole(args[0])};
  };
  return def;
}

void CopyOperand(const KernelCall& call) { CopyValid(call, call.in[0], call.out[0]); }

}  // namespace

void RegisterReshardOps(OpRegistry& registry) {
  OpDef reshard = MoveDef("reshard", {}, true);
  reshard.attrs.clear();
  AddExplanation(reshard);
  reshard.infer = [](const InferArgs& args) { return std::vector<TensorType>{Whole(args[0])}; };
  reshard.no_gradient = {};
  // The same value, so the same gradient; where that has to be is the sharding passes' business.
  reshard.gradient = [](const GradientArgs& args) {
    return std::vector<Value*>{args.result_grads[0]};
  };
  reshard.precision = Precision::kFollow;

  OpDef constraint = MoveDef("sharding_constraint", {}, false);
  constraint.infer = reshard.infer;
  constraint.attrs.push_back({"role", AttrKind::kString});
  constraint.constrains = true;
  constraint.rule = [](const Op& op) {
    return IsFloat(op.out().dtype) ? ElementwiseRule(op, {{0}}) : ElementwiseRule(op);
  };
  constraint.no_gradient = {};
  constraint.gradient = reshard.gradient;
  constraint.reference = CopyOperand;
  constraint.precision = Precision::kFollow;
  constraint.cheap = true;
  constraint.view = true;
  registry.Add(std::move(constraint));
  registry.Add(std::move(reshard));

  registry.Add(AllReduceDef());
  registry.Add(MoveDef("all_gather", Movement{Cut("dim"), kWhole}, true));
  registry.Add(MoveDef("reduce_scatter", Movement{kPartial, Cut("dim")}, true));
  registry.Add(MoveDef("all_to_all", Movement{Cut("concat_dim"), Cut("split_dim")}, true));
  registry.Add(SendRecvDef());

  OpDef slice = MoveDef("local_slice", Movement{kWhole, Cut("dim")}, false);
  slice.reference = CopyOperand;
  slice.cheap = true;
  registry.Add(std::move(slice));

  OpDef zero = MoveDef("zero_padding", {}, false);
  zero.attrs = {};
  zero.infer = [](const InferArgs& args) { return std::vector<TensorType>{Whole(args[0])}; };
  zero.reference = CopyOperand;
  zero.cheap = true;
  zero.in_place = [](int, int) { return true; };
  zero.ignores_padding = true;
  registry.Add(std::move(zero));
}

}  // namespace shardc
