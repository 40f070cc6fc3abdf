// What exporters compute from a parameter, element by element.
#pragma once

#include <set>
#include <span>
#include <string>
#include <string_view>

#include "ir/builder.h"

namespace shardc::onnx_import {

struct ElementFunction {
  std::string_view name;  // what PyTorch calls the function that tells it
  double (*value)(double x);
  Value* (*make)(Builder& b, Value* x);
};

std::span<const ElementFunction> ElementFunctions();

// The parameter that an exporter computed a tensor from, and by which functions, as PyTorch calls
// them.
struct ComputedFrom {
  std::string param;
  std::set<std::string, std::less<>> functions;
  bool scaled = false;       // by one product with, or division by, constants
  bool trains_alike = true;  // none of them changes how long a step is
  bool keeps_values = true;  // nor its direction
  bool several = false;      // more than one of them changes numbers, signs left aside
};

}  // namespace shardc::onnx_import
