// ONNX files to graphs.
#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "ir/graph.h"

namespace shardc {

struct ImportOptions {
  std::map<std::string, int64_t> bind;   // the file's symbols: {"batch", 2}
  std::map<std::string, Shape> shapes;   // by input name
};

// A forward graph of plain ops with static shapes; inputs and outputs keep their names, parameters become `param` ops
// named as in the file with the names that the exporter lost as `aliases`, everything that depends on constants and shapes
// alone is folded. Parameters are mapped, not read. Op sites come from the nodes' names. Throws Diagnostic E1001
// (missing, empty, truncated, not ONNX), E1201 to E1204 (symbols), E1301 (unsupported op: node, op, opset), E1401 (external data),
// E13xx (a node that is malformed).
Graph ImportOnnx(const std::string& path, const ImportOptions& options);

}  // namespace shardc
