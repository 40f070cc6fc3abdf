// Models beside the module that they were exported from.
#pragma once

#include <cmath>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "ir/convert.h"
#include "tests/frontend/import_testing.h"
#include "tests/frontend/recover_testing.h"

namespace shardc::import_testing {

// All elements differ.
inline HostTensor Data(const Shape& shape, double first = 1) {
  HostTensor t(DType::kF32, shape);
  for (int64_t i = 0; i < t.num_elements(); ++i) {
    t.SetDouble(i, static_cast<float>(std::sin(first + static_cast<double>(i))));
  }
  return t;
}

class RestoreTest : public ImportTest {
 protected:
  RestoreTest() { options_.module.where = "--module own.safetensors"; }

  void InModule(const std::string& name, const HostTensor& t) {
    options_.module.tensors[name] = {t.dtype(), t.shape(),
                                     std::make_shared<::shardc::testing::DataSource>(t)};
  }
  // An initializer that is added to, or multiplies, an input of its shape; the result is an output.
  void InFile(const std::string& name, const HostTensor& t, const std::string& op = "Add") {
    std::vector<float> values;
    for (int64_t i = 0; i < t.num_elements(); ++i) {
      values.push_back(static_cast<float>(t.AsDouble(i)));
    }
    model_.Floats(name, t.shape(), values);
    std::vector<std::string> dims;
    for (int64_t n : t.shape()) dims.push_back(std::to_string(n));
    model_.Input("x_" + name, dims);
    model_.Node(op, {"x_" + name, name}, {"y_" + name});
    model_.Output("y_" + name);
  }
  // The parameters and their aliases; each result must be what it is without the module.
  std::map<std::string, Strings> Restored(double most_error = 0) {
    const Graph plain = Import(model_.proto), graph = Import(model_.proto, options_);
    notes_ = graph.notes;
    recover_testing::Tensors inputs;
    for (const auto& input : plain.inputs()) inputs[input->name] = Data(input->type.shape, .5);
    recover_testing::ExpectNear(recover_testing::Evaluate(plain, inputs),
                                recover_testing::Evaluate(graph, inputs), most_error);
    std::map<std::string, Strings> names;
    for (const Op* param : graph.Params()) {
      const std::string& name = param->attrs.String("name");
      names[name] = param->attrs.StringList("aliases", {});
      const auto own = options_.module.tensors.find(name);
      if (own != options_.module.tensors.end()) {
        EXPECT_EQ(param->out().shape, own->second.shape);
      }
    }
    return names;
  }

  Model model_;
  ImportOptions options_;
  Strings notes_;
};

// The columns of a matrix as its rows, of each matrix of a stack too.
inline HostTensor Turned(const HostTensor& t) {
  if (t.shape().size() == 2) return Transposed(t);
  const int64_t rows = t.shape()[1], columns = t.shape()[2];
  HostTensor turned(t.dtype(), {t.shape()[0], columns, rows});
  for (int64_t i = 0; i < t.num_elements(); ++i) {
    const int64_t row = i / columns % rows, column = i % columns;
    turned.SetDouble(i / (rows * columns) * rows * columns + column * rows + row, t.AsDouble(i));
  }
  return turned;
}

inline HostTensor Reshaped(const HostTensor& t, const Shape& shape) {
  HostTensor reshaped(t.dtype(), shape);
  std::copy_n(t.raw(), t.bytes(), reshaped.raw());
  return reshaped;
}

inline HostTensor Map(HostTensor t, double (*function)(double)) {
  for (int64_t i = 0; i < t.num_elements(); ++i) t.SetDouble(i, function(t.AsDouble(i)));
  return t;
}

}  // namespace shardc::import_testing
