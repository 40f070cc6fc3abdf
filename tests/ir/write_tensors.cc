#include "tests/ir/write_tensors.h"

#include <span>
#include <string_view>

#include "ir/output_file.h"
#include "ir/safetensors.h"

namespace shardc::testing {
namespace {

std::string_view DescrOf(DType dtype) {
  switch (dtype) {
    case DType::kF16:
      return "<f2";
    case DType::kF32:
      return "<f4";
    case DType::kF64:
      return "<f8";
    case DType::kI32:
      return "<i4";
    case DType::kI64:
      return "<i8";
    case DType::kBool:
      return "|b1";
    case DType::kBF16:
      break;
  }
  throw InternalError("NumPy has no bf16");
}

std::span<const std::byte> BytesOf(const HostTensor& t) {
  return {t.raw(), static_cast<size_t>(t.bytes())};
}

}  // namespace

void WriteNpy(const std::string& path, const HostTensor& value) {
  std::string shape;
  for (int64_t d : value.shape()) shape += (shape.empty() ? "" : " ") + std::to_string(d) + ",";
  std::string header = StrCat("{'descr': '", DescrOf(value.dtype()),
                              "', 'fortran_order': False, 'shape': (", shape, "), }");
  // With magic, version and length a multiple of 64, the last a line's end.
  constexpr size_t kBefore = 10, kAlignment = 64;
  header.append(kAlignment - 1 - (kBefore + header.size()) % kAlignment, ' ').append("\n");
  OutputFile out(path);
  out.Write(StrCat("\x93NUMPY\x01", '\x00', static_cast<char>(header.size() & 0xff),
                   static_cast<char>(header.size() >> 8), header));
  out.Write(BytesOf(value));
  out.Close();
}

void WriteSafetensors(const std::string& path, const std::map<std::string, HostTensor>& tensors) {
  std::vector<SafetensorsWriter::Announced> announced;
  for (const auto& [name, tensor] : tensors) {
    announced.push_back({name, tensor.dtype(), tensor.shape()});
  }
  SafetensorsWriter writer(path, std::move(announced));
  for (const auto& [name, tensor] : tensors) writer.Write(BytesOf(tensor));
  writer.Finish();
}

}  // namespace shardc::testing
