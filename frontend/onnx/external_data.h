// Tensors whose data lies in another file beside the model.
#pragma once

#include <onnx/onnx_pb.h>

#include <map>
#include <memory>
#include <string>

#include "frontend/onnx/mapped_file.h"

namespace shardc::onnx_import {

class ExternalFiles {
 public:
  explicit ExternalFiles(std::string folder) : folder_(std::move(folder)) {}

  // The data of a tensor with data_location EXTERNAL; `where` is the file and the tensor. A file
  // may not be outside the folder, nor be or be behind a link, so that a model cannot make the tool
  // read other files. Throws Diagnostic E1401.
  Bytes Get(const onnx::TensorProto& tensor, const std::string& where);

 private:
  std::shared_ptr<const MappedFile> Open(const std::string& location, const std::string& where);

  std::string folder_;
  std::map<std::string, std::shared_ptr<const MappedFile>> files_;
};

}  // namespace shardc::onnx_import
