#include "frontend/onnx/initializers.h"

#include <cstring>
#include <limits>

#include "ir/shape_limit.h"
#include "ir/shard_copy.h"

namespace shardc::onnx_import {
namespace {

using onnx::TensorProto;

[[noreturn]] void Malformed(const std::string& where, const std::string& what) {
  throw Diagnostic("E1402", ExitCode::kBadModel, where, what);
}

// Bytes of an element as raw_data stores it.
int64_t StoredSize(int onnx_type) {
  switch (onnx_type) {
    case TensorProto::INT8:
    case TensorProto::UINT8:
    case TensorProto::BOOL:
      return 1;
    case TensorProto::INT16:
    case TensorProto::UINT16:
    case TensorProto::FLOAT16:
    case TensorProto::BFLOAT16:
      return 2;
    case TensorProto::INT64:
    case TensorProto::UINT64:
    case TensorProto::DOUBLE:
      return 8;
    default:
      return 4;
  }
}

bool StoredAsHeld(int onnx_type) {
  switch (onnx_type) {
    case TensorProto::FLOAT:
    case TensorProto::DOUBLE:
    case TensorProto::FLOAT16:
    case TensorProto::BFLOAT16:
    case TensorProto::INT32:
    case TensorProto::INT64:
      return true;
    default:
      return false;
  }
}

int64_t SignedOf(uint64_t value, const std::string& where) {
  if (value > static_cast<uint64_t>(std::numeric_limits<int64_t>::max())) {
    Malformed(where, StrCat("has the value ", value, ", which does not fit an int64"));
  }
  return static_cast<int64_t>(value);
}

void SetInt(HostTensor& t, int64_t i, int64_t value) {
  switch (t.dtype()) {
    case DType::kI64:
      t.data<int64_t>()[i] = value;
      break;
    case DType::kI32:
      t.data<int32_t>()[i] = static_cast<int32_t>(value);
      break;
    default:
      t.raw()[i] = static_cast<std::byte>(value != 0);
  }
}

template <typename T>
T LoadAt(const std::byte* data, int64_t i) {
  T value;
  std::memcpy(&value, data + i * static_cast<int64_t>(sizeof(T)), sizeof(T));
  return value;
}

int64_t LoadInt(int onnx_type, const std::byte* data, int64_t i, const std::string& where) {
  switch (onnx_type) {
    case TensorProto::INT8:
      return LoadAt<int8_t>(data, i);
    case TensorProto::INT16:
      return LoadAt<int16_t>(data, i);
    case TensorProto::UINT16:
      return LoadAt<uint16_t>(data, i);
    case TensorProto::UINT32:
      return LoadAt<uint32_t>(data, i);
    case TensorProto::UINT64:
      return SignedOf(LoadAt<uint64_t>(data, i), where);
    default:
      return LoadAt<uint8_t>(data, i);
  }
}

void CheckCount(int64_t count, const char* field, const TensorType& type,
                const std::string& where) {
  if (count == type.num_elements()) return;
  Malformed(where, StrCat("has ", count, " elements in ", field, ", but its dims ",
                          ShapeToString(type.shape), " ask for ", type.num_elements()));
}

template <typename T, typename Values>
HostTensor CopyValues(const Values& values, const char* field, const TensorType& type,
                      const std::string& where) {
  CheckCount(values.size(), field, type, where);
  HostTensor t(type.dtype, type.shape);
  for (int i = 0; i < values.size(); ++i) {
    T value = static_cast<T>(values.Get(i));
    std::memcpy(t.raw() + i * sizeof(T), &value, sizeof(T));
  }
  return t;
}

// Data in the fields for each type.
HostTensor ReadTyped(const TensorProto& tensor, const TensorType& type, const std::string& where) {
  switch (tensor.data_type()) {
    case TensorProto::FLOAT:
      return CopyValues<float>(tensor.float_data(), "float_data", type, where);
    case TensorProto::DOUBLE:
      return CopyValues<double>(tensor.double_data(), "double_data", type, where);
    case TensorProto::INT64:
      return CopyValues<int64_t>(tensor.int64_data(), "int64_data", type, where);
    case TensorProto::FLOAT16:
    case TensorProto::BFLOAT16:
      return CopyValues<uint16_t>(tensor.int32_data(), "int32_data", type, where);
    case TensorProto::UINT32:
    case TensorProto::UINT64: {
      CheckCount(tensor.uint64_data_size(), "uint64_data", type, where);
      HostTensor t(type.dtype, type.shape);
      for (int i = 0; i < tensor.uint64_data_size(); ++i) {
        SetInt(t, i, SignedOf(tensor.uint64_data(i), where));
      }
      return t;
    }
    default: {
      CheckCount(tensor.int32_data_size(), "int32_data", type, where);
      HostTensor t(type.dtype, type.shape);
      for (int i = 0; i < tensor.int32_data_size(); ++i) SetInt(t, i, tensor.int32_data(i));
      return t;
    }
  }
}

class BytesSource : public TensorSource {
 public:
  BytesSource(Bytes bytes, TensorType type) : bytes_(std::move(bytes)), type_(std::move(type)) {}
  void Read(const Shape& offset, const Shape& size, void* out) const override {
    SHARDC_CHECK(offset.size() == type_.shape.size() && size.size() == offset.size());
    for (size_t d = 0; d < size.size(); ++d) {
      SHARDC_CHECK(offset[d] >= 0 && size[d] >= 0 && size[d] <= type_.shape[d] - offset[d],
                   "box of dim ", d);
    }
    CopyBox(bytes_.data, type_.shape, offset, static_cast<std::byte*>(out), size,
            Shape(size.size()), size, DTypeSize(type_.dtype));
    // The pages of a large model would add up to all of it in memory.
    if (bytes_.mapped && bytes_.size >= kKeptPages) MappedFile::Release(bytes_.data, bytes_.size);
  }

 private:
  static constexpr size_t kKeptPages = 64 << 10;  // a tensor below that may stay
  Bytes bytes_;
  TensorType type_;
};

}  // namespace

std::optional<DType> HeldAs(int onnx_type) {
  switch (onnx_type) {
    case TensorProto::FLOAT:
      return DType::kF32;
    case TensorProto::DOUBLE:
      return DType::kF64;
    case TensorProto::FLOAT16:
      return DType::kF16;
    case TensorProto::BFLOAT16:
      return DType::kBF16;
    case TensorProto::BOOL:
      return DType::kBool;
    case TensorProto::INT8:
    case TensorProto::UINT8:
    case TensorProto::INT16:
    case TensorProto::UINT16:
    case TensorProto::INT32:
      return DType::kI32;
    case TensorProto::UINT32:
    case TensorProto::UINT64:
    case TensorProto::INT64:
      return DType::kI64;
    default:
      return std::nullopt;
  }
}

std::string OnnxTypeName(int onnx_type) {
  if (!onnx::TensorProto_DataType_IsValid(onnx_type)) return StrCat("type ", onnx_type);
  std::string name = onnx::TensorProto_DataType_Name(onnx_type);
  for (char& c : name) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return name;
}

std::string TensorReader::Where(const TensorProto& tensor) const {
  return tensor.name().empty() ? path_ : StrCat(path_, ": tensor '", tensor.name(), "'");
}

TensorType TensorReader::Type(const TensorProto& tensor) const {
  const std::string where = Where(tensor);
  auto dtype = HeldAs(tensor.data_type());
  if (!dtype) {
    Malformed(where, StrCat("has elements of type ", OnnxTypeName(tensor.data_type()),
                            ", which is not supported"));
  }
  if (tensor.has_segment()) Malformed(where, "is a segment of a tensor, which is not supported");
  Shape shape(tensor.dims().begin(), tensor.dims().end());
  for (int64_t dim : shape) {
    if (dim < 0) Malformed(where, StrCat("has the dim ", dim));
  }
  if (TooLarge(*dtype, shape)) Malformed(where, "has more elements than any file holds");
  return TensorType(*dtype, std::move(shape));
}

std::optional<Bytes> TensorReader::StoredBytes(const TensorProto& tensor, const Bytes* raw,
                                               const TensorType& type) {
  Bytes bytes;
  if (tensor.data_location() == TensorProto::EXTERNAL) {
    bytes = files_.Get(tensor, Where(tensor));
  } else if (raw != nullptr) {
    bytes = *raw;
  } else if (tensor.has_raw_data()) {
    bytes = {reinterpret_cast<const std::byte*>(tensor.raw_data().data()), tensor.raw_data().size(),
             nullptr};
  } else {
    return std::nullopt;
  }
  auto wanted = static_cast<size_t>(type.num_elements() * StoredSize(tensor.data_type()));
  if (bytes.size != wanted) {
    bool external = tensor.data_location() == TensorProto::EXTERNAL;
    throw Diagnostic(
        external ? "E1401" : "E1402", ExitCode::kBadModel, Where(tensor),
        StrCat("has ", bytes.size, " bytes of data, but its type ",
               OnnxTypeName(tensor.data_type()), ShapeToString(type.shape), " asks for ", wanted));
  }
  return bytes;
}

HostTensor TensorReader::Read(const TensorProto& tensor, const Bytes* raw) {
  TensorType type = Type(tensor);
  const std::string where = Where(tensor);
  auto bytes = StoredBytes(tensor, raw, type);
  if (!bytes) return ReadTyped(tensor, type, where);
  HostTensor t(type.dtype, type.shape);
  if (StoredAsHeld(tensor.data_type())) {
    if (bytes->size > 0) std::memcpy(t.raw(), bytes->data, bytes->size);
    return t;
  }
  for (int64_t i = 0; i < t.num_elements(); ++i) {
    SetInt(t, i, LoadInt(tensor.data_type(), bytes->data, i, where));
  }
  return t;
}

std::shared_ptr<const TensorSource> TensorReader::Source(const TensorProto& tensor,
                                                         const Bytes* raw) {
  TensorType type = Type(tensor);
  auto bytes = StoredBytes(tensor, raw, type);
  if (bytes && bytes->owner && StoredAsHeld(tensor.data_type())) {
    return std::make_shared<BytesSource>(std::move(*bytes), std::move(type));
  }
  auto held = std::make_shared<const HostTensor>(Read(tensor, raw));
  Bytes copy{held->raw(), static_cast<size_t>(held->bytes()), held};
  return std::make_shared<BytesSource>(std::move(copy), std::move(type));
}

}  // namespace shardc::onnx_import
