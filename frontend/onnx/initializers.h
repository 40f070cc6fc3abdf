// The data of tensors: as a HostTensor, or to be read in pieces.
#pragma once

#include <onnx/onnx_pb.h>

#include <memory>
#include <optional>
#include <string>

#include "frontend/onnx/external_data.h"
#include "frontend/onnx/stored_elements.h"
#include "ir/graph.h"
#include "ir/host_tensor.h"

namespace shardc::onnx_import {

// The type that holds the elements of an ONNX type, or null: integers below 32 bits are held as
// i32, u32 and u64 as i64.
std::optional<DType> HeldAs(int onnx_type);
bool IsFloatType(int onnx_type);  // whether that is a type of floats
// The ONNX type of floats that are held so.
int OnnxTypeOf(DType floats);
// "float", "uint8", "type 99".
std::string OnnxTypeName(int onnx_type);

class TensorReader {
 public:
  TensorReader(std::string path, const std::string& folder)
      : path_(std::move(path)), files_(folder) {}

  // `raw` is the tensor's raw_data where that was left in the model's file, else null. Sizes are
  // checked before anything is allocated. Throws Diagnostic E1402 (type, dims, or data that does
  // not fit them), E1401.
  HostTensor Read(const onnx::TensorProto& tensor, const Bytes* raw);
  // The same, read lazily where the elements are stored as they are held.
  std::shared_ptr<const TensorSource> Source(const onnx::TensorProto& tensor, const Bytes* raw);
  TensorType Type(const onnx::TensorProto& tensor) const;
  // As they are stored, of any type of numbers; the tensor need not stay. Throws likewise.
  StoredElements Elements(const onnx::TensorProto& tensor, const Bytes* raw);

 private:
  std::string Where(const onnx::TensorProto& tensor) const;
  Shape CheckedShape(const onnx::TensorProto& tensor, DType dtype) const;
  Bytes StoredBytes(const onnx::TensorProto& tensor, const Bytes* raw, const TensorType& type);

  std::string path_;
  ExternalFiles files_;
};

}  // namespace shardc::onnx_import
