// If and Loop, whose graphs become a part of the graph around them.
#pragma once

#include <onnx/onnx_pb.h>

#include "frontend/onnx/node.h"

namespace shardc::onnx_import {

// What the graphs of a node are converted by, as the one around it is.
class GraphConverter {
 public:
  virtual void AddTensors(const onnx::GraphProto& graph) = 0;  // those that something reads
  virtual void Convert(const onnx::NodeProto& node) = 0;

 protected:
  ~GraphConverter() = default;
};

// The branch that a constant condition takes. Throws Diagnostic E1307 where it is none.
void ConvertIf(const onnx::NodeProto& proto, Node& node, Conversion& conversion,
               GraphConverter& converter);

// A loop of which it is known how often it runs becomes its rounds, one after the other. Throws
// Diagnostic E1307 where that is not known, or too often.
void UnrollLoop(const onnx::NodeProto& proto, Node& node, Conversion& conversion,
                GraphConverter& converter);

}  // namespace shardc::onnx_import
