#include "ir/ops/draws.h"

#include "ir/builder.h"
#include "ir/ops/infer_util.h"
#include "ir/ops/reference_floats.h"
#include "ir/philox.h"
#include "ir/place_in_whole.h"

namespace shardc {

void AddDrawAttrs(OpDef& def) {
  def.attrs.insert(def.attrs.end(), {{"seed", AttrKind::kInt},
                                     {"stream", AttrKind::kInt},
                                     {"origin", AttrKind::kInts},
                                     {"whole", AttrKind::kInts}});
}

void AddDropAttrs(OpDef& def, bool required) {
  def.attrs.push_back({"ratio", AttrKind::kFloat, required});
  AddDrawAttrs(def);
}

void CheckDraws(std::string_view op, const InferArgs& args, const Shape& drawn) {
  const TensorType& step = args[args.size() - 1];
  RequireInteger(op, step, "the step");
  RequireShape(op, step, {}, "the step");
  const double ratio = args.attrs.Float("ratio", 0);
  if (!(ratio >= 0 && ratio <= 1)) InferError(op, StrCat("ratio ", ratio, " is not in [0, 1]"));
  CheckPart(op, args.attrs, drawn);
}

void CheckPart(std::string_view op, const Attributes& attrs, const Shape& part) {
  CheckOrigin(op, attrs, TensorType(DType::kF32, part), "the mask");
  const Shape origin = OriginOf(attrs, static_cast<int>(part.size()));
  const Shape whole = WholeOf(attrs, part);
  bool fits = whole.size() == origin.size();
  for (size_t d = 0; fits && d < whole.size(); ++d) {
    fits = origin[d] >= 0 && whole[d] >= part[d] && origin[d] <= whole[d] - part[d];
  }
  if (!fits) {
    InferError(op, StrCat(ShapeToString(part), " at ", ShapeToString(origin), " is no part of ",
                          ShapeToString(whole)));
  }
  CheckShape(op, DType::kF32, whole);
}

Attributes AttributesOfDrawnPart(const Op& op, const Shape& part, const Shape& origin) {
  Attributes attrs = WithOriginMoved(op.attrs, origin);
  attrs.Set("whole", WholeOf(op.attrs, part));
  return attrs;
}

std::vector<Value*> WithoutStep(Builder& builder, const Op& op) {
  Attributes attrs = op.attrs;
  for (const char* name : {"ratio", "seed", "stream"}) attrs.Erase(name);
  if (!attrs.Bool("causal")) {  // whose mask goes by them as well
    for (const char* name : {"origin", "whole"}) attrs.Erase(name);
  }
  std::vector<Value*> operands(op.operands.begin(), op.operands.end() - 1);
  const Op* made = builder.Create(op.name(), std::move(operands), std::move(attrs));
  for (size_t i = 0; i < op.results.size(); ++i) made->results[i]->name = op.results[i]->name;
  return made->results;
}

Draws::Draws(const KernelCall& call)
    : mask_(MaskOf(*call.attrs)), step_(static_cast<uint32_t>(ToInts(call.in.back())[0])) {}

double Draws::Factor(int64_t place) const {
  return Word(place) >= mask_.threshold ? mask_.scale : 0;
}

double Draws::Uniform(int64_t place) const { return UniformOf(Word(place)); }

uint32_t Draws::Word(int64_t place) const {
  const auto i = static_cast<uint64_t>(place);
  const auto words = Philox4x32(
      {static_cast<uint32_t>(i / 4), static_cast<uint32_t>(i >> 34), mask_.stream, step_},
      {static_cast<uint32_t>(mask_.seed), static_cast<uint32_t>(mask_.seed >> 32)});
  return words[i % 4];
}

}  // namespace shardc
