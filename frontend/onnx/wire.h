// Takes the large tensors out of a serialized model before protobuf copies them.
#pragma once

#include <map>
#include <string>

#include "frontend/onnx/mapped_file.h"

namespace shardc::onnx_import {

struct StrippedModel {
  std::string proto;         // the model without the raw_data that is in `raw`
  std::map<int, Bytes> raw;  // by the tensor's index in ModelProto.graph.initializer
  std::string error;         // why the bytes are not a serialized message; empty: they are
};

// raw_data of fewer bytes than this stays in the proto.
inline constexpr size_t kLargeRawData = 4096;

StrippedModel StripRawData(const Bytes& model);

}  // namespace shardc::onnx_import
