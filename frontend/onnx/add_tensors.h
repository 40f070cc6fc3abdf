// The tensors of a file in the graph: parameters, and constants.
#pragma once

#include <onnx/onnx_pb.h>

#include <map>
#include <string>
#include <vector>

#include "frontend/import.h"
#include "frontend/onnx/load_model.h"
#include "frontend/onnx/node.h"
#include "frontend/onnx/params.h"
#include "ir/graph.h"

namespace shardc::onnx_import {

class TensorAdder {
 public:
  // All must outlive this.
  TensorAdder(const LoadedModel& model, const Parameters& params, const ImportOptions& options,
              Graph& graph, Conversion& conversion)
      : model_(model), params_(params), options_(options), graph_(graph), conversion_(conversion) {}

  // Those of this graph, the model's or one of a node's, that something reads, or copies of which
  // are read, become values of the conversion. Throws Diagnostic E1308 where two parameters have
  // one name, and what TensorReader throws.
  void Add(const onnx::GraphProto& proto);

  // Constants that have NaN beside numbers.
  const std::vector<std::string>& with_nan() const { return with_nan_; }

 private:
  Value* AddParam(const onnx::TensorProto& t, const Bytes* bytes);
  Value* AddConstant(const onnx::TensorProto& t, const Bytes* bytes);

  const LoadedModel& model_;
  const Parameters& params_;
  const ImportOptions& options_;
  Graph& graph_;
  Conversion& conversion_;
  std::map<const onnx::TensorProto*, Value*> made_;  // parameters
  std::vector<std::string> with_nan_;
};

}  // namespace shardc::onnx_import
