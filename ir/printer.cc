#include <algorithm>
#include <bit>
#include <charconv>
#include <cmath>
#include <cstring>
#include <limits>
#include <unordered_map>
#include <unordered_set>

#include "ir/op_def.h"
#include "ir/text.h"

namespace shardc {
namespace {

constexpr int64_t kMaxListed = 64;  // larger tensors print as hex

void AppendHex(std::string& out, uint64_t bits, int digits) {
  for (int shift = 4 * (digits - 1); shift >= 0; shift -= 4) {
    out += "0123456789abcdef"[bits >> shift & 15];
  }
}

void AppendQuoted(std::string& out, std::string_view text) {
  out += '"';
  for (char c : text) {
    unsigned char byte = static_cast<unsigned char>(c);
    if (c == '"' || c == '\\') {
      out += '\\';
      out += c;
    } else if (c == '\n') {
      out += "\\n";
    } else if (c == '\t') {
      out += "\\t";
    } else if (byte < 0x20 || byte == 0x7f) {
      out += "\\x";
      AppendHex(out, byte, 2);
    } else {
      out += c;
    }
  }
  out += '"';
}

bool IsNameChar(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' ||
         c == '.';
}

bool IsPlainName(std::string_view name) {
  return !name.empty() && std::all_of(name.begin(), name.end(), IsNameChar);
}

bool IsNumber(std::string_view name) {
  return !name.empty() &&
         std::all_of(name.begin(), name.end(), [](char c) { return c >= '0' && c <= '9'; });
}

template <typename T>
void AppendNumber(std::string& out, T value) {
  char buffer[64];
  out.append(buffer, std::to_chars(buffer, buffer + sizeof buffer, value).ptr);
}

// `bits` are those of the value in its own type, whose quiet NaN is `quiet`.
template <typename T>
void AppendFloat(std::string& out, T value, uint64_t bits, uint64_t quiet, int bytes) {
  if (!std::isnan(value)) return AppendNumber(out, value);
  out += "nan";
  if (bits == quiet) return;
  out += "(0x";
  AppendHex(out, bits, 2 * bytes);
  out += ')';
}

void AppendDouble(std::string& out, double value) {
  size_t start = out.size();
  AppendFloat(out, value, std::bit_cast<uint64_t>(value), 0x7ff8000000000000, 8);
  if (out.find_first_of(".en", start) == std::string::npos) out += ".0";
}

void AppendElement(std::string& out, const HostTensor& t, int64_t i) {
  auto bits = [&]<typename U>(U) {
    U value;
    std::memcpy(&value, t.raw() + i * static_cast<int64_t>(sizeof(U)), sizeof(U));
    return value;
  };
  switch (t.dtype()) {
    case DType::kF32:
      return AppendFloat(out, t.data<float>()[i], bits(uint32_t{}), 0x7fc00000, 4);
    case DType::kF64:
      return AppendFloat(out, t.data<double>()[i], bits(uint64_t{}), 0x7ff8000000000000, 8);
    case DType::kF16:
      return AppendFloat(out, HalfToFloat(bits(uint16_t{})), bits(uint16_t{}), 0x7e00, 2);
    case DType::kBF16:
      return AppendFloat(out, BFloat16ToFloat(bits(uint16_t{})), bits(uint16_t{}), 0x7fc0, 2);
    case DType::kI32:
      return AppendNumber(out, t.data<int32_t>()[i]);
    case DType::kI64:
      return AppendNumber(out, t.data<int64_t>()[i]);
    case DType::kBool:
      out += bits(uint8_t{}) != 0 ? "true" : "false";
  }
}

bool AllEqual(const HostTensor& t) {
  size_t size = static_cast<size_t>(DTypeSize(t.dtype()));
  size_t bytes = static_cast<size_t>(t.bytes());
  return bytes > size && std::memcmp(t.raw(), t.raw() + size, bytes - size) == 0;
}

void AppendTensor(std::string& out, const HostTensor& t) {
  out += "tensor<";
  out += DTypeName(t.dtype());
  out += ShapeToString(t.shape());
  out += ": ";
  if (AllEqual(t)) {
    out += "splat(";
    AppendElement(out, t, 0);
    out += ')';
  } else if (t.num_elements() > kMaxListed) {
    out.reserve(out.size() + 2 * static_cast<size_t>(t.bytes()) + 64);
    out += "0x";
    for (int64_t i = 0; i < t.bytes(); ++i) AppendHex(out, static_cast<uint64_t>(t.raw()[i]), 2);
  } else {
    for (int64_t i = 0; i < t.num_elements(); ++i) {
      if (i) out += ", ";
      AppendElement(out, t, i);
    }
  }
  out += '>';
}

template <typename List, typename Fn>
void AppendList(std::string& out, const List& list, Fn append) {
  out += '[';
  for (size_t i = 0; i < list.size(); ++i) {
    if (i) out += ", ";
    append(list[i]);
  }
  out += ']';
}

struct AttributePrinter {
  std::string& out;
  void operator()(int64_t v) const { AppendNumber(out, v); }
  void operator()(double v) const { AppendDouble(out, v); }
  void operator()(bool v) const { out += v ? "true" : "false"; }
  void operator()(const std::string& v) const { AppendQuoted(out, v); }
  void operator()(const Ints& v) const {
    AppendList(out, v, [&](int64_t n) { AppendNumber(out, n); });
  }
  void operator()(const Strings& v) const {
    AppendList(out, v, [&](const std::string& s) { AppendQuoted(out, s); });
  }
  void operator()(const TensorPtr& v) const { AppendTensor(out, *v); }
};

class Printer {
 public:
  explicit Printer(const Graph& graph) : graph_(graph) {}

  std::string Run() {
    out_.reserve(160 * (graph_.num_ops() + 4));
    NameValues();
    PrintHeader();
    for (const auto& op : graph_.ops()) PrintOp(*op);
    out_ += "}\n";
    return std::move(out_);
  }

 private:
  template <typename Fn>
  void ForEachValue(Fn fn) const {
    for (const auto& input : graph_.inputs()) fn(input.get());
    for (const auto& op : graph_.ops()) {
      for (const Value* r : op->results) fn(r);
    }
  }

  // The first value of a name gets it, the others get numbers that are nobody's name.
  void NameValues() {
    std::unordered_set<std::string_view> taken;
    ForEachValue([&](const Value* v) {
      bool given = v->producer == nullptr || !v->name.empty();
      if (given && taken.insert(v->name).second) names_[v] = PrintedName(*v);
    });
    int64_t next = 0;
    ForEachValue([&](const Value* v) {
      if (names_.contains(v)) return;
      std::string number = std::to_string(next++);
      while (taken.contains(number)) number = std::to_string(next++);
      names_[v] = "%" + number;
    });
  }

  // A number without quotes names a result that has no name.
  static std::string PrintedName(const Value& v) {
    std::string text = "%";
    if (IsPlainName(v.name) && (v.producer == nullptr || !IsNumber(v.name))) return text + v.name;
    AppendQuoted(text, v.name);
    return text;
  }

  const std::string& NameOf(const Value* v) const {
    static const std::string kUnknown = "%\"<not in the graph>\"";
    auto it = names_.find(v);
    return it == names_.end() ? kUnknown : it->second;
  }

  void PrintHeader() {
    if (graph_.mesh.num_axes() > 0) {
      out_ += "mesh ";
      AppendList(out_, graph_.mesh.axes(),
                 [&](const MeshAxis& a) { out_ += a.name + "=" + std::to_string(a.size); });
      out_ += '\n';
    }
    if (!graph_.pipeline_axis.empty()) out_ += "pipeline " + graph_.pipeline_axis + '\n';
    out_ += "graph @";
    bool plain = IsPlainName(graph_.name) && !(graph_.name[0] >= '0' && graph_.name[0] <= '9');
    plain ? void(out_ += graph_.name) : AppendQuoted(out_, graph_.name);
    out_ += '(';
    for (const auto& input : graph_.inputs()) {
      if (input->index > 0) out_ += ", ";
      out_ += NameOf(input.get()) + ": " + TypeToString(input->type, graph_.mesh);
    }
    out_ += ") -> (";
    for (size_t i = 0; i < graph_.outputs.size(); ++i) {
      if (i) out_ += ", ";
      PrintOutput(graph_.outputs[i]);
    }
    out_ += ") {\n";
  }

  void PrintOutput(const Output& output) {
    const std::string& value = NameOf(output.value);
    std::string name;
    AppendQuoted(name, output.name);
    if (IsPlainName(output.name)) name = output.name;
    if (value != "%" + name) {
      out_ += name;
      out_ += ": ";
    }
    out_ += value;
  }

  void PrintOp(const Op& op) {
    out_ += "  ";
    for (size_t i = 0; i < op.results.size(); ++i) {
      out_ += (i ? ", " : "") + NameOf(op.results[i]);
    }
    if (!op.results.empty()) out_ += " = ";
    out_ += op.name();
    const Attribute* name = NameFirst(*op.def) ? op.attrs.Find("name") : nullptr;
    if (name && std::holds_alternative<std::string>(*name)) {
      out_ += ' ';
      AppendQuoted(out_, std::get<std::string>(*name));
    } else {
      name = nullptr;
    }
    for (size_t i = 0; i < op.operands.size(); ++i) {
      out_ += (i ? ", " : " ") + NameOf(op.operands[i]);
    }
    PrintAttributes(op, name);
    for (size_t i = 0; i < op.results.size(); ++i) {
      out_ += (i ? ", " : " : ") + TypeToString(op.results[i]->type, graph_.mesh);
    }
    out_ += '\n';
  }

  static bool NameFirst(const OpDef& def) {
    return std::any_of(def.attrs.begin(), def.attrs.end(), [](const AttrSpec& a) {
      return a.name == "name" && a.kind == AttrKind::kString && a.required;
    });
  }

  void PrintAttributes(const Op& op, const Attribute* skip) {
    bool first = true;
    auto key = [&](std::string_view name) {
      out_ += first ? " {" : ", ";
      first = false;
      out_ += name;
      out_ += '=';
    };
    for (const auto& [name, value] : op.attrs.entries()) {
      if (&value == skip) continue;
      key(name);
      std::visit(AttributePrinter{out_}, value);
    }
    if (op.phase != Phase::kForward) {
      key("phase");
      AppendQuoted(out_, PhaseName(op.phase));
    }
    if (!op.site.empty()) {
      key("site");
      AppendQuoted(out_, op.site);
    }
    const int virtual_stage = op.virtual_stage > 0 ? op.virtual_stage : -1;
    for (auto [name, n] : {std::pair("stage", op.stage), std::pair("virtual_stage", virtual_stage),
                           std::pair("microbatch", op.microbatch)}) {
      if (n < 0) continue;
      key(name);
      out_ += std::to_string(n);
    }
    if (!first) out_ += '}';
  }

  const Graph& graph_;
  std::unordered_map<const Value*, std::string> names_;  // as printed
  std::string out_;
};

}  // namespace

std::string AttributeToString(const Attribute& value) {
  std::string out;
  std::visit(AttributePrinter{out}, value);
  return out;
}

std::string Quoted(std::string_view text) {
  std::string out;
  AppendQuoted(out, text);
  return out;
}

std::string PrintGraph(const Graph& graph) { return Printer(graph).Run(); }

}  // namespace shardc
