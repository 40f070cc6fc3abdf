#include "frontend/onnx/initializers.h"

#include <cstring>
#include <limits>
#include <map>
#include <vector>

#include "ir/shape_limit.h"
#include "ir/shard_copy.h"

namespace shardc::onnx_import {
namespace {

using onnx::TensorProto;

[[noreturn]] void Malformed(const std::string& where, const std::string& what) {
  throw Diagnostic("E1402", ExitCode::kBadModel, where, what);
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

// The elements of a field for one type, each as the raw type `T` of raw_data.
template <typename T, typename Values>
Bytes Packed(const Values& values, const char* field, int64_t wanted, const TensorType& type,
             const std::string& where) {
  if (values.size() != wanted) {
    Malformed(where, StrCat("has ", values.size(), " elements in ", field, ", but its dims ",
                            ShapeToString(type.shape), " ask for ", wanted));
  }
  auto packed = std::make_shared<std::vector<T>>();
  packed->reserve(static_cast<size_t>(wanted));
  for (const auto value : values) packed->push_back(static_cast<T>(value));
  return {reinterpret_cast<const std::byte*>(packed->data()), packed->size() * sizeof(T), packed};
}

// Data in the fields for each type, as raw_data would have them.
Bytes PackedFields(const TensorProto& tensor, const TensorType& type, const std::string& where) {
  const int64_t count = type.num_elements();
  switch (tensor.data_type()) {
    case TensorProto::FLOAT:
      return Packed<float>(tensor.float_data(), "float_data", count, type, where);
    case TensorProto::DOUBLE:
      return Packed<double>(tensor.double_data(), "double_data", count, type, where);
    case TensorProto::INT64:
      return Packed<int64_t>(tensor.int64_data(), "int64_data", count, type, where);
    case TensorProto::UINT32:
      return Packed<uint32_t>(tensor.uint64_data(), "uint64_data", count, type, where);
    case TensorProto::UINT64:
      return Packed<uint64_t>(tensor.uint64_data(), "uint64_data", count, type, where);
    default:
      break;
  }
  switch (const auto& values = tensor.int32_data(); *StoredBits(tensor.data_type())) {
    case 32:
      return Packed<uint32_t>(values, "int32_data", count, type, where);
    case 16:
      return Packed<uint16_t>(values, "int32_data", count, type, where);
    default:
      return Packed<uint8_t>(values, "int32_data", StoredSize(tensor.data_type(), count), type,
                             where);
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
    case kInt4:
    case kUint4:
    case kInt2:
    case kUint2:
      return DType::kI32;
    case TensorProto::UINT32:
    case TensorProto::UINT64:
    case TensorProto::INT64:
      return DType::kI64;
    default:
      return std::nullopt;
  }
}

bool IsFloatType(int onnx_type) {
  const auto held = HeldAs(onnx_type);
  return held && IsFloat(*held);
}

int OnnxTypeOf(DType floats) {
  for (const int type : {TensorProto::FLOAT, TensorProto::DOUBLE, TensorProto::FLOAT16}) {
    if (HeldAs(type) == floats) return type;
  }
  return TensorProto::BFLOAT16;
}

std::string OnnxTypeName(int onnx_type) {
  static const std::map<int, std::string> kNewer = {{kFloat8E4M3FN, "float8e4m3fn"},
                                                    {kFloat8E4M3FNUZ, "float8e4m3fnuz"},
                                                    {kFloat8E5M2, "float8e5m2"},
                                                    {kFloat8E5M2FNUZ, "float8e5m2fnuz"},
                                                    {kUint4, "uint4"},
                                                    {kInt4, "int4"},
                                                    {kFloat4E2M1, "float4e2m1"},
                                                    {kUint2, "uint2"},
                                                    {kInt2, "int2"}};
  if (const auto newer = kNewer.find(onnx_type); newer != kNewer.end()) return newer->second;
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
  return TensorType(*dtype, CheckedShape(tensor, *dtype));
}

Shape TensorReader::CheckedShape(const TensorProto& tensor, DType dtype) const {
  const std::string where = Where(tensor);
  if (tensor.has_segment()) Malformed(where, "is a segment of a tensor, which is not supported");
  Shape shape(tensor.dims().begin(), tensor.dims().end());
  for (int64_t dim : shape) {
    if (dim < 0) Malformed(where, StrCat("has the dim ", dim));
  }
  if (TooLarge(dtype, shape)) Malformed(where, "has more elements than any file holds");
  return shape;
}

Bytes TensorReader::StoredBytes(const TensorProto& tensor, const Bytes* raw,
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
    return PackedFields(tensor, type, Where(tensor));
  }
  const auto wanted = static_cast<size_t>(StoredSize(tensor.data_type(), type.num_elements()));
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
  HostTensor t(type.dtype, type.shape);
  if (raw != nullptr && raw->computed != nullptr) {
    raw->computed->Read(Shape(type.shape.size()), type.shape, t.raw());
    return t;
  }
  const Bytes bytes = StoredBytes(tensor, raw, type);
  if (StoredAsHeld(tensor.data_type())) {
    if (bytes.size > 0) std::memcpy(t.raw(), bytes.data, bytes.size);
  } else if (tensor.data_type() == TensorProto::UINT64) {
    for (int64_t i = 0; i < t.num_elements(); ++i) {
      uint64_t value;
      std::memcpy(&value, bytes.data + i * 8, sizeof(value));
      SetInt(t, i, SignedOf(value, Where(tensor)));
    }
  } else {
    const StoredElements elements(bytes, tensor.data_type());
    for (int64_t i = 0; i < t.num_elements(); ++i) {
      SetInt(t, i, static_cast<int64_t>(elements.At(i)));
    }
  }
  return t;
}

std::shared_ptr<const TensorSource> TensorReader::Source(const TensorProto& tensor,
                                                         const Bytes* raw) {
  if (raw != nullptr && raw->computed != nullptr) return raw->computed;
  TensorType type = Type(tensor);
  if (StoredAsHeld(tensor.data_type())) {
    Bytes bytes = StoredBytes(tensor, raw, type);
    if (bytes.owner) return std::make_shared<BytesSource>(std::move(bytes), std::move(type));
  }
  auto held = std::make_shared<const HostTensor>(Read(tensor, raw));
  Bytes copy{held->raw(), static_cast<size_t>(held->bytes()), held};
  return std::make_shared<BytesSource>(std::move(copy), std::move(type));
}

StoredElements TensorReader::Elements(const TensorProto& tensor, const Bytes* raw) {
  if (!StoredBits(tensor.data_type())) {
    Malformed(Where(tensor), StrCat("has elements of type ", OnnxTypeName(tensor.data_type()),
                                    ", which is not supported"));
  }
  if (raw != nullptr && raw->computed != nullptr) {
    const auto read = std::make_shared<const HostTensor>(Read(tensor, raw));
    const Bytes held = {read->raw(), static_cast<size_t>(read->bytes()), read};
    return StoredElements(held, tensor.data_type());
  }
  // Of which the dims alone are looked at: some of these types are not held.
  const TensorType type(DType::kF64, CheckedShape(tensor, DType::kF64));
  Bytes bytes = StoredBytes(tensor, raw, type);
  if (bytes.owner == nullptr) {
    auto copy = std::make_shared<std::vector<std::byte>>(bytes.data, bytes.data + bytes.size);
    bytes = {copy->data(), copy->size(), copy};
  }
  return StoredElements(std::move(bytes), tensor.data_type());
}

}  // namespace shardc::onnx_import
