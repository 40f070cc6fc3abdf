#include <cstring>
#include <nlohmann/json.hpp>
#include <string_view>

#include "ir/checksum.h"
#include "ir/output_file.h"
#include "ir/safetensors.h"

namespace shardc {
namespace {

std::string_view StoredName(DType dtype) {
  switch (dtype) {
    case DType::kF64:
      return "F64";
    case DType::kF32:
      return "F32";
    case DType::kF16:
      return "F16";
    case DType::kBF16:
      return "BF16";
    case DType::kI64:
      return "I64";
    case DType::kI32:
      return "I32";
    case DType::kBool:
      return "BOOL";
  }
  return "?";
}

}  // namespace

struct SafetensorsWriter::Impl {
  Impl(const std::string& path, std::vector<Announced> tensors)
      : path(path), tensors(std::move(tensors)), file(path) {}

  int64_t BytesOf(const Announced& t) const { return NumElements(t.shape) * DTypeSize(t.dtype); }

  // The header as text, and how many bytes follow it.
  std::string Header(const std::map<std::string, std::string>& metadata) {
    nlohmann::json header = nlohmann::json::object();
    constexpr const char* kMetadata = "__metadata__";
    if (!metadata.empty()) header[kMetadata] = metadata;
    for (const Announced& t : tensors) {
      if (t.name == kMetadata) {
        throw Diagnostic("E5104", ExitCode::kBadModel, path,
                         StrCat("'", kMetadata, "' is no name of a tensor in such a file"),
                         "rename it in the model");
      }
      SHARDC_CHECK(!header.contains(t.name), t.name);
      int64_t end = total + BytesOf(t);
      header[t.name] = {
          {"dtype", StoredName(t.dtype)}, {"shape", t.shape}, {"data_offsets", {total, end}}};
      total = end;
    }
    std::string text = header.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
    text.resize((text.size() + 7) / 8 * 8, ' ');
    return text;
  }

  void Put(std::span<const std::byte> bytes) {
    file.Write(bytes);
    sum.Update(bytes);
    file_bytes += static_cast<int64_t>(bytes.size());
  }

  std::string path;
  std::vector<Announced> tensors;
  Checksum sum;
  int64_t file_bytes = 0;
  WholeFile file;
  int64_t total = 0, written = 0;
};

SafetensorsWriter::SafetensorsWriter(const std::string& path, std::vector<Announced> tensors,
                                     const std::map<std::string, std::string>& metadata)
    : impl_(std::make_unique<Impl>(path, std::move(tensors))) {
  std::string header = impl_->Header(metadata);
  uint64_t size = header.size();
  impl_->Put(std::as_bytes(std::span(&size, 1)));
  impl_->Put(std::as_bytes(std::span(header)));
}

SafetensorsWriter::~SafetensorsWriter() = default;

void SafetensorsWriter::Write(std::span<const std::byte> bytes) {
  impl_->written += static_cast<int64_t>(bytes.size());
  SHARDC_CHECK(impl_->written <= impl_->total, impl_->path, ": more data than announced");
  impl_->Put(bytes);
}

SafetensorsWriter::Written SafetensorsWriter::Finish() {
  SHARDC_CHECK(impl_->written == impl_->total, impl_->path, ": ", impl_->written, " bytes of ",
               impl_->total);
  impl_->file.Commit();
  return {impl_->file_bytes, impl_->sum.Hex()};
}

}  // namespace shardc
