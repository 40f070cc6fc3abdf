// ONNX files to graphs.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>

#include "ir/fixed_tensor.h"
#include "ir/graph.h"

namespace shardc {

// A tensor of the module that was exported. The source gives it in `dtype`.
struct ModuleParam {
  DType dtype = DType::kF32;
  Shape shape;
  std::shared_ptr<const TensorSource> source;
};

// What a file says of the module: its parameters, and what else it keeps, by name.
struct ModuleParams {
  std::string where;  // for messages: "--module model.safetensors"; empty: there is no file
  std::map<std::string, ModuleParam> tensors;
};

struct ImportOptions {
  std::map<std::string, int64_t> bind;  // the file's symbols: {"batch", 2}
  std::map<std::string, Shape> shapes;  // by input name
  ModuleParams module = {};             // without a file: nothing is known of it
  FixedTensors* fixed = nullptr;        // where to put what the file has as constants, if anywhere
};

// A forward graph of plain ops with static shapes; inputs and outputs keep their names, parameters
// become `param` ops named as in the file with the names that the exporter lost as `aliases`,
// everything that depends on constants and shapes alone is folded. Parameters are mapped, not read.
// Given the module's, a parameter that the exporter made of one of them is that one, with an op
// that makes what it was (a transpose), as far as their data tell; these are read. Op sites are the
// modules of the nodes, or the nodes' names. Throws Diagnostic
//   E1001  empty, truncated, not ONNX
//   E1002  opset not in 9..28
//   E1003  IR version not in 3..14
//   E1201  --bind or --shape names a symbol or an input that the file does not have
//   E1202  a dim of an input stays unknown
//   E1203  bindings contradict each other
//   E1204  a shape is not what the file declares
//   E1205  an input is no tensor of a supported type
//   E1301  unsupported op (node, op, domain, opset), or unsupported output of one
//   E1302  a node lacks an input or has one that does not fit
//   E1303  an attribute of the wrong kind
//   E1304  an input that has to be known when compiling is not
//   E1305  a function of the model cannot be written out
//   E1306  integer overflow or division by zero in constants
//   E1307  control flow that depends on data
//   E1308  a name that nothing makes before it is read, that is made twice, or that is not UTF-8
//   E1401  external data: outside the folder, linked, missing, too short
//   E1402  a tensor whose type, dims and data do not fit each other
//   E1403  the module's tensors are not those that were exported
//   E5001  cannot be read
Graph ImportOnnx(const std::string& path, const ImportOptions& options);

}  // namespace shardc
