#include "frontend/onnx/fold_codes.h"

#include <algorithm>
#include <map>
#include <memory>
#include <set>
#include <utility>
#include <vector>

#include "frontend/onnx/constant_weights.h"
#include "frontend/onnx/dequantize_weights.h"
#include "frontend/onnx/erase_unread.h"
#include "frontend/onnx/graph_rewriter.h"
#include "frontend/onnx/narrow.h"
#include "frontend/onnx/node.h"
#include "frontend/onnx/op_types.h"
#include "frontend/onnx/op_versions.h"
#include "frontend/onnx/refuse_op.h"
#include "frontend/onnx/uses.h"
#include "ir/constant.h"

namespace shardc::onnx_import {
namespace {

using onnx::NodeProto;
using onnx::TensorProto;

// What a value that depends on tensors of the file alone is made of.
enum class Of { kOthers, kWideIntegers, kCodes };

bool IsWide(int type) { return type == TensorProto::INT32 || type == TensorProto::UINT32; }

Of KindOf(const TensorProto& t) {
  const int type = t.data_type();
  if (LargerDims(t) == 0) return Of::kOthers;
  if (IsWide(type)) return t.dims_size() > 1 ? Of::kWideIntegers : Of::kOthers;
  const auto bits = StoredBits(type);
  const bool small = bits && *bits <= 16 && !IsFloatType(type) && type != TensorProto::BOOL;
  return small ? Of::kCodes : Of::kOthers;
}

bool Moves(const NodeProto& node) {
  return MovesElements(node) || node.op_type() == "Concat" || node.op_type() == "Split";
}

// Element by element, or shapes for that. What sums products (adapters that are added to a weight,
// say) has parameters of its own.
bool Computes(const NodeProto& node) {
  static const std::set<std::string_view> kOps = {"Add",         "And",
                                                  "BitShift",    "BitwiseAnd",
                                                  "BitwiseNot",  "BitwiseOr",
                                                  "Cast",        "CastLike",
                                                  "Clip",        "Constant",
                                                  "Div",         "ConstantOfShape",
                                                  "Equal",       "GatherND",
                                                  "Greater",     "Less",
                                                  "Max",         "DequantizeLinear",
                                                  "Min",         "GreaterOrEqual",
                                                  "LessOrEqual", "Mod",
                                                  "Mul",         "GatherElements",
                                                  "Neg",         "Not",
                                                  "Or",          "Pow",
                                                  "Range",       "BitwiseXor",
                                                  "Round",       "Shape",
                                                  "Sub",         "Where",
                                                  "Floor"};
  return kOps.contains(node.op_type());
}

bool LooksUp(const NodeProto& node) {
  return node.op_type().starts_with("Gather") && !InputOf(node, 0).empty() &&
         !InputOf(node, 1).empty();
}

bool MayBeEvaluated(const NodeProto& node) {
  return node.output_size() == 1 && !node.output(0).empty() && (Computes(node) || Moves(node));
}

// Up to three of them.
std::set<double> ValuesOf(const HostTensor& t) {
  std::set<double> values;
  for (int64_t i = 0; i < t.num_elements() && values.size() < 3; ++i) values.insert(t.AsDouble(i));
  return values;
}

// 0 and one other number: what is seen or kept, or what is next to what, is no weight.
bool HoldsMask(const HostTensor& t) {
  const std::set<double> values = ValuesOf(t);
  return t.num_elements() > 2 && values.size() == 2 && values.contains(0);
}

class CodeFolder final : public GraphRewriter {
 public:
  CodeFolder(LoadedModel& model, TensorReader& reader, const ConverterTable& converters)
      : GraphRewriter(model), reader_(reader), converters_(converters) {}

  Strings Notes() {
    FindKinds();
    if (std::ranges::none_of(kinds_, [](const auto& k) { return k.second == Of::kCodes; }))
      return {};
    for (const int node : LastNodes()) Evaluate(node);
    if (results_.empty()) return {};
    Run();
    EraseUnread(model_, std::move(unread_));
    const bool one = results_.size() == 1;
    Strings notes = {StrCat(results_.size(), one ? " tensor" : " tensors", " of floats that nodes ",
                            "compute of small integers ", one ? "is" : "are",
                            " taken for the file's own: '", first_, one ? "'" : "' the first")};
    for (const auto& [codes, made] : made_of_) {
      if (made.size() > 1) notes.push_back(MadeOfTheSame(made[0], made[1]));
    }
    return notes;
  }

 private:
  struct Result {
    std::string codes;  // the largest tensor of them
    std::shared_ptr<const HostTensor> floats;
  };

  void AddTensorOf(const std::string& name, const TensorProto& t, const Bytes* raw) {
    kinds_[name] = KindOf(t);
    tensors_[name] = {&t, raw, {}};
  }

  void FindKinds() {
    for (int i = 0; i < graph_.initializer_size(); ++i) {
      const TensorProto& t = graph_.initializer(i);
      AddTensorOf(t.name(), t, model_.RawOf(i));
    }
    for (int i = 0; i < graph_.node_size(); ++i) {
      const NodeProto& node = graph_.node(i);
      if (const TensorProto* value = ConstantValue(node)) {
        AddTensorOf(node.output(0), *value, nullptr);
      } else if (MayBeEvaluated(node)) {
        AddKindOf(node, i);
      }
    }
  }

  void AddKindOf(const NodeProto& node, int place) {
    Of kind = Of::kOthers;
    for (const std::string& input : node.input()) {
      const auto of = kinds_.find(input);
      if (of == kinds_.end() && !input.empty()) return;
      if (!input.empty()) kind = std::max(kind, of->second);
    }
    if (kind == Of::kCodes && ChoosesRows(node)) return;
    if (kind == Of::kWideIntegers && node.op_type().starts_with("Bit")) kind = Of::kCodes;
    if (kinds_.try_emplace(node.output(0), kind).second) makers_[node.output(0)] = place;
  }

  // Whether codes say which rows of another matrix: positions and the like, whose table is what is
  // trained. Numbers that codes stand for are no matrix.
  bool ChoosesRows(const NodeProto& node) const {
    if (!LooksUp(node) || kinds_.at(node.input(0)) == Of::kCodes) return false;
    std::string table = node.input(0);
    for (auto maker = makers_.find(table); maker != makers_.end(); maker = makers_.find(table)) {
      const NodeProto& made_by = graph_.node(maker->second);
      if (made_by.input_size() == 0) return true;
      table = made_by.input(0);
    }
    const auto tensor = tensors_.find(table);
    return tensor == tensors_.end() || LargerDims(*tensor->second.tensor) > 1;
  }

  // Those that compute something else than moved elements, of which the model's inputs meet the
  // result, moved or not.
  std::vector<int> LastNodes() const {
    std::set<std::string> met;
    for (const auto& output : graph_.output()) met.insert(output.name());
    std::vector<int> last;
    for (int i = graph_.node_size() - 1; i >= 0; --i) {
      const NodeProto& node = graph_.node(i);
      const std::string& made = OutputOf(node);
      const auto maker = makers_.find(made);
      const bool is_known = maker != makers_.end() && maker->second == i;
      if (!is_known || (Moves(node) && met.contains(made))) {
        for (std::string& name : ReadBy(node)) met.insert(std::move(name));
      } else if (met.contains(made) && kinds_.at(made) == Of::kCodes) {
        last.push_back(i);
      }
    }
    return last;
  }

  // The nodes that this value depends on, in order, and the tensors.
  std::pair<std::set<int>, std::set<std::string>> Before(const std::string& value) const {
    std::set<int> nodes;
    std::set<std::string> tensors;
    std::vector<std::string> open = {value};
    while (!open.empty()) {
      const std::string name = std::move(open.back());
      open.pop_back();
      if (const auto maker = makers_.find(name); maker == makers_.end()) {
        if (!name.empty()) tensors.insert(name);
      } else if (nodes.insert(maker->second).second) {
        const NodeProto& node = graph_.node(maker->second);
        open.insert(open.end(), node.input().begin(), node.input().end());
      }
    }
    return {std::move(nodes), std::move(tensors)};
  }

  void Evaluate(int last) {
    const std::string& value = graph_.node(last).output(0);
    const auto [nodes, tensors] = Before(value);
    Graph scratch;
    Conversion conversion(model_.path, model_.folder, scratch);
    conversion.opsets = model_.opsets;
    Result result;
    int64_t most_codes = 0, most_floats = 0;
    bool is_mask = false;
    try {
      for (const std::string& name : tensors) {
        const int64_t count = Add(name, conversion).type.num_elements();
        if (kinds_.at(name) != Of::kOthers && count > most_codes) {
          most_codes = count;
          result.codes = name;
          is_mask = ValuesOf(*ConstantOf(conversion.values.at(name))).size() < 3;
        } else if (IsFloat(conversion.values.at(name)->type.dtype)) {
          most_floats = std::max(most_floats, count);
        }
      }
      for (const int i : nodes) Convert(graph_.node(i), conversion);
    } catch (const Diagnostic&) {
      return;  // it is told where the node is converted with the others
    }
    const HostTensor* made = ConstantOf(conversion.values.at(value));
    auto is_vector = [](const HostTensor& t) {
      return std::ranges::count_if(t.shape(), [](int64_t d) { return d > 1; }) < 2;
    };
    if (made == nullptr || !IsFloat(made->dtype()) || made->num_elements() < 2 ||
        (is_mask && most_floats > made->num_elements() / 2) || HoldsMask(*made) ||
        (is_vector(*made) && ChooseFloats(nodes)))
      return;
    result.floats = std::make_shared<const HostTensor>(*made);
    results_.emplace(value, std::move(result));
  }

  // Whether among these nodes codes choose floats.
  bool ChooseFloats(const std::set<int>& nodes) const {
    return std::ranges::any_of(nodes, [this](int i) {
      const NodeProto& node = graph_.node(i);
      return LooksUp(node) && kinds_.at(node.input(0)) != Of::kCodes &&
             kinds_.at(node.input(1)) == Of::kCodes;
    });
  }

  const Value& Add(const std::string& name, Conversion& conversion) {
    const Stored& stored = tensors_.at(name);
    Value* value = conversion.builder.Constant(reader_.Read(*stored.tensor, stored.raw));
    conversion.values[name] = value;
    if (IsNarrow(stored.tensor->data_type())) conversion.narrow[name] = stored.tensor->data_type();
    return *value;
  }

  void Convert(const NodeProto& proto, Conversion& conversion) const {
    conversion.wanted.insert(proto.output(0));
    Node node(conversion, proto);
    CheckVersion(node, proto);
    CheckTypes(node, proto);
    const auto converter = converters_.find(OpKey(proto));
    if (converter == converters_.end()) node.Fail("E1301", "has no converter", "");
    converter->second(node);
    node.CheckOutputs();
    node.CheckRead();
  }

  bool Rewrite(const NodeProto& node) override {
    const auto found = results_.find(OutputOf(node));
    if (InBranch() || found == results_.end()) return false;
    const auto& [codes, floats] = found->second;
    const std::string name = NewName(StrCat(codes, "_floats"));
    AddTensor(name, OnnxTypeOf(floats->dtype()), floats->shape(),
              Bytes{floats->raw(), static_cast<size_t>(floats->bytes()), floats});
    Replace(node, name);
    made_of_[codes].push_back(name);
    if (first_.empty()) first_ = name;
    unread_.insert(node.input().begin(), node.input().end());
    return true;
  }

  TensorReader& reader_;
  const ConverterTable& converters_;
  std::map<std::string, Of> kinds_;
  std::map<std::string, Stored> tensors_;
  std::map<std::string, int> makers_;  // of other values: their nodes
  std::map<std::string, Result> results_;
  std::map<std::string, Strings> made_of_;  // by codes
  std::string first_;                       // that was made
  std::set<std::string> unread_;
};

}  // namespace

Strings FoldCodes(LoadedModel& model, TensorReader& reader, const ConverterTable& converters) {
  return CodeFolder(model, reader, converters).Notes();
}

}  // namespace shardc::onnx_import
