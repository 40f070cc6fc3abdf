#include "frontend/onnx/converter.h"

namespace shardc::onnx_import {

Value* NodeContext::input(int i) const {
  if (!has_input(i)) {
    Fail("E1302", StrCat("has no input ", i, "; it has ", num_inputs()));
  }
  return InputOrNull(i);
}

Ints NodeContext::ConstantInts(int i) const {
  Value* value = input(i);
  const HostTensor* constant = ConstantOf(value);
  if (constant == nullptr) {
    Fail("E1304",
         StrCat("its input ", i, " has to be known when compiling; it depends on input data"),
         "it decides shapes: shapes that depend on data are not supported");
  }
  if (IsFloat(constant->dtype())) {
    Fail("E1302",
         StrCat("its input ", i, " is ", DTypeName(constant->dtype()), "; it has to be integers"));
  }
  Ints ints(static_cast<size_t>(constant->num_elements()));
  for (size_t k = 0; k < ints.size(); ++k) ints[k] = constant->AsInt(static_cast<int64_t>(k));
  return ints;
}

int64_t NodeContext::ConstantInt(int i) const {
  Ints ints = ConstantInts(i);
  if (ints.size() != 1) {
    Fail("E1302",
         StrCat("its input ", i, " has ", ints.size(), " elements; it has to be one number"));
  }
  return ints[0];
}

double NodeContext::ConstantScalar(int i) const {
  Value* value = input(i);
  const HostTensor* constant = ConstantOf(value);
  if (constant == nullptr) {
    Fail("E1304",
         StrCat("its input ", i, " has to be known when compiling; it depends on input data"));
  }
  if (constant->num_elements() != 1) {
    Fail("E1302", StrCat("its input ", i, " has ", constant->num_elements(),
                         " elements; it has to be one number"));
  }
  return constant->AsDouble(0);
}

Value* NodeContext::Constant(HostTensor value) {
  Attributes attrs;
  attrs.Set("value", std::make_shared<const HostTensor>(std::move(value)));
  return Make("constant", {}, std::move(attrs));
}

Value* NodeContext::Scalar(DType dtype, double value) {
  HostTensor t(dtype, {});
  t.SetDouble(0, value);
  return Constant(std::move(t));
}

Value* NodeContext::Cast(Value* v, DType to) {
  if (v->type.dtype == to) return v;
  return Make("cast", {v}, {{"to", std::string(DTypeName(to))}});
}

Value* NodeContext::Reshape(Value* v, Shape shape) {
  if (v->type.shape == shape) return v;
  return Make("reshape", {v}, {{"shape", std::move(shape)}});
}

Value* NodeContext::Transpose(Value* v, Ints perm) {
  bool identity = static_cast<int>(perm.size()) == v->type.rank();
  for (size_t i = 0; i < perm.size(); ++i) identity &= perm[i] == static_cast<int64_t>(i);
  return identity ? v : Make("transpose", {v}, {{"perm", std::move(perm)}});
}

Value* NodeContext::BroadcastTo(Value* v, Shape shape) {
  if (v->type.shape == shape) return v;
  return Make("broadcast_to", {v}, {{"shape", std::move(shape)}});
}

}  // namespace shardc::onnx_import
