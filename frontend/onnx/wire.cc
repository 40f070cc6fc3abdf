#include "frontend/onnx/wire.h"

#include <cstdint>
#include <optional>
#include <string_view>

namespace shardc::onnx_import {
namespace {

constexpr uint32_t kModelGraph = 7, kGraphInitializer = 5, kTensorRawData = 9;

struct Field {
  uint32_t number = 0;
  bool is_bytes = false;
  std::string_view whole;    // tag included
  std::string_view content;  // of a length-delimited field
};

std::optional<uint64_t> TakeVarint(std::string_view& at) {
  uint64_t value = 0;
  for (int shift = 0; shift < 64 && !at.empty(); shift += 7) {
    auto byte = static_cast<uint8_t>(at[0]);
    at.remove_prefix(1);
    value |= static_cast<uint64_t>(byte & 0x7f) << shift;
    if (byte < 0x80) return value;
  }
  return std::nullopt;
}

// The size of the field's content, after its tag and its length; null when the wire format forbids
// it.
std::optional<uint64_t> ContentSize(int wire_type, std::string_view& at) {
  switch (wire_type) {
    case 0: {
      std::string_view rest = at;
      if (!TakeVarint(rest)) return std::nullopt;
      return at.size() - rest.size();
    }
    case 1:
      return 8;
    case 2:
      return TakeVarint(at);
    case 5:
      return 4;
    default:
      return std::nullopt;
  }
}

std::optional<Field> TakeField(std::string_view& at) {
  std::string_view start = at;
  auto tag = TakeVarint(at);
  if (!tag || *tag >> 3 == 0 || *tag >> 32 != 0) return std::nullopt;
  auto size = ContentSize(static_cast<int>(*tag & 7), at);
  if (!size || *size > at.size()) return std::nullopt;
  Field field;
  field.number = static_cast<uint32_t>(*tag >> 3);
  field.is_bytes = (*tag & 7) == 2;
  field.content = at.substr(0, *size);
  at.remove_prefix(*size);
  field.whole = start.substr(0, start.size() - at.size());
  return field;
}

void AppendVarint(std::string& out, uint64_t value) {
  for (; value >= 0x80; value >>= 7) out.push_back(static_cast<char>(value | 0x80));
  out.push_back(static_cast<char>(value));
}

void AppendMessage(std::string& out, uint32_t number, const std::string& content) {
  AppendVarint(out, (static_cast<uint64_t>(number) << 3) | 2);
  AppendVarint(out, content.size());
  out += content;
}

class Stripper {
 public:
  Stripper(const Bytes& model, StrippedModel& result) : model_(model), result_(result) {}

  void Run() {
    std::string_view all(reinterpret_cast<const char*>(model_.data), model_.size);
    if (!Model(all)) {
      result_.error = "its bytes are not a serialized model, or it is cut short";
    }
  }

 private:
  bool Model(std::string_view at) {
    while (!at.empty()) {
      auto field = TakeField(at);
      if (!field) return false;
      if (field->number == kModelGraph && field->is_bytes) {
        std::string graph;
        if (!Graph(field->content, graph)) return false;
        AppendMessage(result_.proto, kModelGraph, graph);
      } else {
        result_.proto += field->whole;
      }
    }
    return true;
  }

  bool Graph(std::string_view at, std::string& out) {
    while (!at.empty()) {
      auto field = TakeField(at);
      if (!field) return false;
      if (field->number == kGraphInitializer && field->is_bytes) {
        std::string tensor;
        if (!Tensor(field->content, tensor)) return false;
        AppendMessage(out, kGraphInitializer, tensor);
        ++num_tensors_;
      } else {
        out += field->whole;
      }
    }
    return true;
  }

  bool Tensor(std::string_view at, std::string& out) {
    while (!at.empty()) {
      auto field = TakeField(at);
      if (!field) return false;
      if (field->number == kTensorRawData && field->is_bytes &&
          field->content.size() >= kLargeRawData) {
        result_.raw[num_tensors_] = {reinterpret_cast<const std::byte*>(field->content.data()),
                                     field->content.size(), model_.owner, model_.mapped};
      } else {
        out += field->whole;
      }
    }
    return true;
  }

  const Bytes& model_;
  StrippedModel& result_;
  int num_tensors_ = 0;
};

}  // namespace

StrippedModel StripRawData(const Bytes& model) {
  StrippedModel result;
  Stripper(model, result).Run();
  return result;
}

}  // namespace shardc::onnx_import
