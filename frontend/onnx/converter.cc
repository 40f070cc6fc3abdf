#include "frontend/onnx/converter.h"

namespace shardc::onnx_import {

Value* NodeContext::input(int i) const {
  if (!has_input(i)) {
    Fail("E1302", StrCat("has no input ", i, "; it has ", num_inputs()));
  }
  return InputOrNull(i);
}

bool NodeContext::Flag(std::string_view name, bool otherwise) const {
  const int64_t value = Int(name, otherwise ? 1 : 0);
  if (value != 0 && value != 1) {
    Fail("E1303", StrCat("attribute '", name, "' is ", value, "; it has to be 0 or 1"));
  }
  return value != 0;
}

Ints NodeContext::ConstantInts(int i) const {
  Value* value = input(i);
  const HostTensor* constant = ConstantOf(value);
  if (constant == nullptr) {
    Fail("E1304",
         StrCat("its input ", i, " has to be known when compiling; it depends on input data"),
         kDataDecides);
  }
  if (IsFloat(constant->dtype())) {
    Fail("E1302",
         StrCat("its input ", i, " is ", DTypeName(constant->dtype()), "; it has to be integers"));
  }
  Ints ints(constant->num_elements());
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

std::vector<double> NodeContext::ConstantFloats(int i) const {
  const HostTensor* constant = ConstantOf(input(i));
  if (constant == nullptr) {
    Fail("E1304",
         StrCat("its input ", i, " has to be known when compiling; it depends on input data"));
  }
  std::vector<double> values(constant->num_elements());
  for (size_t k = 0; k < values.size(); ++k) {
    const auto at = static_cast<int64_t>(k);
    values[k] = constant->AsDouble(at);
    if (constant->dtype() != DType::kI64) continue;
    const bool exact = values[k] < 0x1p63 && static_cast<int64_t>(values[k]) == constant->AsInt(at);
    if (!exact)
      Fail("E1306",
           StrCat("its input ", i, " has the value ", constant->AsInt(at), ", which is no double"));
  }
  return values;
}

double NodeContext::ConstantScalar(int i) const {
  const std::vector<double> values = ConstantFloats(i);
  if (values.size() != 1) {
    Fail("E1302",
         StrCat("its input ", i, " has ", values.size(), " elements; it has to be one number"));
  }
  return values[0];
}

}  // namespace shardc::onnx_import
