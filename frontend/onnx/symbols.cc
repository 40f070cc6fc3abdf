#include "frontend/onnx/symbols.h"

#include <set>

#include "frontend/onnx/dim_expression.h"
#include "frontend/onnx/initializers.h"
#include "ir/shape_limit.h"

namespace shardc::onnx_import {
namespace {

using Dim = onnx::TensorShapeProto::Dimension;
using Inputs = std::vector<const onnx::ValueInfoProto*>;

[[noreturn]] void Fail(const char* id, const std::string& where, const std::string& what,
                       const std::string& fix = {}) {
  throw Diagnostic(id, ExitCode::kBadModel, where, what, fix);
}

bool HasShape(const onnx::ValueInfoProto& input) { return input.type().tensor_type().has_shape(); }

// What --bind can give a value instead of a size: an integer or a bool alone.
bool IsNumber(const onnx::ValueInfoProto& input) {
  const auto& tensor = input.type().tensor_type();
  auto held = HeldAs(tensor.elem_type());
  bool alone = tensor.shape().dim_size() == 0 ||
               (tensor.shape().dim_size() == 1 && tensor.shape().dim(0).dim_value() == 1);
  return HasShape(input) && alone && held && !IsFloat(*held);
}

bool IsSymbol(const Dim& dim) { return dim.has_dim_param() && !dim.dim_param().empty(); }

std::string Listed(const std::set<std::string>& names) {
  std::string list;
  for (const std::string& name : names) list += (list.empty() ? "'" : ", '") + name + "'";
  return list;
}

std::string Declared(const onnx::ValueInfoProto& input) {
  std::string text;
  for (const Dim& dim : input.type().tensor_type().shape().dim()) {
    if (!text.empty()) text += ", ";
    text += dim.has_dim_value() ? std::to_string(dim.dim_value())
            : IsSymbol(dim)     ? dim.dim_param()
                                : "?";
  }
  return "[" + text + "]";
}

// "2x32" with 2 for a symbol that is not known: what the user could write.
std::string ExampleShape(const onnx::ValueInfoProto& input) {
  std::string text;
  for (const Dim& dim : input.type().tensor_type().shape().dim()) {
    text += (text.empty() ? "" : "x");
    text += dim.has_dim_value() ? std::to_string(dim.dim_value()) : "2";
  }
  return text.empty() ? "2x32" : text;
}

class Binder {
 public:
  Binder(const std::string& path, const Inputs& inputs, const ImportOptions& options)
      : path_(path), inputs_(inputs), options_(options) {}

  std::vector<InputShape> Run() {
    CheckNames();
    for (const auto& [symbol, size] : options_.bind) {
      if (symbols_.contains(symbol)) Bind(symbol, size, StrCat("--bind ", symbol, "=", size));
    }
    for (const auto* input : inputs_) {
      auto shape = options_.shapes.find(input->name());
      if (shape != options_.shapes.end()) BindShape(*input, shape->second);
    }
    std::vector<InputShape> result;
    for (const auto* input : inputs_) {
      TensorType type(Type(*input), Resolve(*input));
      if (TooLarge(type.dtype, type.shape)) {
        Fail("E1204", Where(*input), "is too large: " + ShapeToString(type.shape));
      }
      result.push_back({input->name(), std::move(type), ValueOf(*input)});
    }
    return result;
  }

 private:
  std::string Where(const onnx::ValueInfoProto& input) const {
    return StrCat(path_, ": input '", input.name(), "'");
  }

  void CheckNames() {
    std::set<std::string> names, numbers;
    for (const auto* input : inputs_) {
      names.insert(input->name());
      if (IsNumber(*input)) numbers.insert(input->name());
      for (const Dim& dim : input->type().tensor_type().shape().dim()) {
        if (!IsSymbol(dim)) continue;
        symbols_.insert(dim.dim_param());
        symbols_.merge(SymbolsIn(dim.dim_param()));
      }
    }
    for (const auto& [symbol, size] : options_.bind) {
      if (!symbols_.contains(symbol) && !numbers.contains(symbol))
        Unknown("--bind " + symbol, "symbol", symbol, symbols_);
    }
    for (const auto& [name, shape] : options_.shapes) {
      if (!names.contains(name)) Unknown("--shape " + name, "input", name, names);
    }
  }

  [[noreturn]] void Unknown(const std::string& flag, const std::string& kind,
                            const std::string& name, const std::set<std::string>& there_are) {
    std::string near = DidYouMean(name, there_are);
    Fail("E1201", flag,
         there_are.empty()
             ? StrCat(path_, " has no ", kind, "s")
             : StrCat(path_, " has no ", kind, " '", name, "'; it has ", Listed(there_are)),
         near);
  }

  void Bind(const std::string& symbol, int64_t size, const std::string& by) {
    if (size < 0) Fail("E1204", by, StrCat("a dim cannot be ", size));
    auto [it, is_new] = bound_.try_emplace(symbol, size, by);
    if (!is_new && it->second.first != size) {
      Fail("E1203", by,
           StrCat("makes '", symbol, "' ", size, ", but ", it->second.second, " makes it ",
                  it->second.first));
    }
  }

  void BindShape(const onnx::ValueInfoProto& input, const Shape& shape) {
    std::string flag = "--shape " + input.name();
    for (int64_t size : shape) {
      if (size < 0) Fail("E1204", flag, StrCat("a dim cannot be ", size));
    }
    if (!HasShape(input)) return;
    const auto& dims = input.type().tensor_type().shape().dim();
    if (static_cast<size_t>(dims.size()) != shape.size()) {
      Fail("E1204", flag,
           StrCat("has ", shape.size(), " dims, but the file declares ", Declared(input)));
    }
    for (int i = 0; i < dims.size(); ++i) {
      if (dims[i].has_dim_value() && dims[i].dim_value() != shape[i]) {
        Fail("E1204", flag,
             StrCat("dim ", i, " is ", shape[i], ", but the file declares ", Declared(input)),
             "export the model with a dynamic axis there to choose its size");
      }
      if (IsSymbol(dims[i])) Bind(dims[i].dim_param(), shape[i], flag);
    }
  }

  DType Type(const onnx::ValueInfoProto& input) const {
    if (!input.type().has_tensor_type()) {
      Fail("E1205", Where(input), "is not a tensor");
    }
    int type = input.type().tensor_type().elem_type();
    auto dtype = HeldAs(type);
    // Narrow integers would need their wrap-around; only whole models with them could show it.
    bool exact = type == onnx::TensorProto::INT32 || type == onnx::TensorProto::INT64 ||
                 type == onnx::TensorProto::BOOL || (dtype && IsFloat(*dtype));
    if (!exact) {
      Fail("E1205", Where(input), StrCat("has elements of type ", OnnxTypeName(type)),
           "inputs may be int64, int32, float, double, bool, float16, bfloat16");
    }
    return *dtype;
  }

  Shape Resolve(const onnx::ValueInfoProto& input) const {
    auto given = options_.shapes.find(input.name());
    if (given != options_.shapes.end()) return given->second;
    if (!HasShape(input)) {
      Fail("E1202", Where(input), "its shape is not known",
           StrCat("pass --shape ", input.name(), "=2x32"));
    }
    Shape shape;
    for (const Dim& dim : input.type().tensor_type().shape().dim()) {
      int i = static_cast<int>(shape.size());
      if (dim.has_dim_value()) {
        if (dim.dim_value() < 0) {
          Fail("E1204", Where(input), StrCat("dim ", i, " is ", dim.dim_value(), " in the file"));
        }
        shape.push_back(dim.dim_value());
        continue;
      }
      std::optional<int64_t> size = IsSymbol(dim) ? SizeOf(dim.dim_param()) : std::nullopt;
      if (!size) Unbound(input, i, dim);
      if (*size < 0) Fail("E1204", Where(input), StrCat("'", dim.dim_param(), "' is ", *size));
      shape.push_back(*size);
    }
    return shape;
  }

  std::optional<int64_t> SizeOf(const std::string& symbol) const {
    auto size = [&](const std::string& name) -> std::optional<int64_t> {
      auto it = bound_.find(name);
      return it == bound_.end() ? std::nullopt : std::optional(it->second.first);
    };
    std::optional<int64_t> own = size(symbol);
    return own ? own : EvaluateDim(symbol, size);
  }

  std::optional<int64_t> ValueOf(const onnx::ValueInfoProto& input) const {
    auto it = options_.bind.find(input.name());
    bool value = it != options_.bind.end() && !symbols_.contains(it->first) && IsNumber(input);
    return value ? std::optional(it->second) : std::nullopt;
  }

  [[noreturn]] void Unbound(const onnx::ValueInfoProto& input, int i, const Dim& dim) const {
    std::string example = StrCat("--shape ", input.name(), "=", ExampleShape(input));
    if (!IsSymbol(dim)) {
      Fail("E1202", Where(input), StrCat("dim ", i, " of ", Declared(input), " is not known"),
           StrCat("pass ", example));
    }
    std::string sizes;  // of all that the input's dims are made of
    std::set<std::string> named;
    for (const Dim& other : input.type().tensor_type().shape().dim()) {
      if (!IsSymbol(other)) continue;
      for (const std::string& symbol : SymbolsIn(other.dim_param())) {
        if (SizeOf(symbol) || !named.insert(symbol).second) continue;
        sizes += StrCat(sizes.empty() ? "" : ",", symbol, "=2");
      }
    }
    Fail("E1202", Where(input),
         StrCat("dim ", i, " of ", Declared(input), ", '", dim.dim_param(), "', is not known"),
         StrCat("pass --bind ", sizes.empty() ? dim.dim_param() + "=2" : sizes, " or ", example));
  }

  const std::string& path_;
  const Inputs& inputs_;
  const ImportOptions& options_;
  std::set<std::string> symbols_;
  std::map<std::string, std::pair<int64_t, std::string>> bound_;  // size, and the flag that said so
};

}  // namespace

std::vector<InputShape> BindInputs(const std::string& path, const Inputs& inputs,
                                   const ImportOptions& options) {
  return Binder(path, inputs, options).Run();
}

}  // namespace shardc::onnx_import
