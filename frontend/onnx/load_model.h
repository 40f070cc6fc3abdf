// Reads an ONNX file.
#pragma once

#include <onnx/onnx_pb.h>

#include <map>
#include <string>

#include "frontend/onnx/mapped_file.h"

namespace shardc::onnx_import {

struct LoadedModel {
  std::string path;
  std::string folder;  // of the file: external data lies in it
  onnx::ModelProto proto;
  std::map<int, Bytes> raw;  // raw_data left in the mapped file, by index of the initializer
  std::map<std::string, int> opsets;  // by domain; the default domain is ""

  // That of an initializer; null where it was not left there.
  const Bytes* RawOf(int initializer) const;
};

// Throws Diagnostic E5001 (cannot be read), E1001 (empty, cut short, not ONNX), E1002 (opset),
// E1003 (IR version).
LoadedModel LoadOnnx(const std::string& path);

// The default domain has two names.
std::string NormalDomain(const std::string& domain);

}  // namespace shardc::onnx_import
