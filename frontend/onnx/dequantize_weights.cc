#include "frontend/onnx/dequantize_weights.h"

#include <algorithm>
#include <cctype>
#include <set>
#include <string_view>
#include <utility>

#include "frontend/onnx/erase_unread.h"
#include "frontend/onnx/graph_rewriter.h"
#include "frontend/onnx/quantized_layouts.h"
#include "frontend/onnx/uses.h"

namespace shardc::onnx_import {
namespace {

using onnx::NodeProto;
using onnx::TensorProto;

// A chain of nodes may be longer than a stack is deep.
constexpr int kMaxMoves = 64;

// Inputs and attributes of a DequantizeLinear.
struct Linear {
  std::string codes, scale, zero;
  int64_t axis = 1, block = 0;
  int type = 0;
};

bool Is(const NodeProto* node, std::string_view op) {
  return node != nullptr && node->op_type() == op;
}

// "w" of "w_quantized", "w_Q4", "w_DQ_Q4", "w_Bnb4"; else empty.
std::string BeforeQuantizing(const std::string& name) {
  const size_t last = name.rfind('_');
  if (last == std::string::npos) return "";
  auto lower = [](unsigned char c) { return static_cast<char>(std::tolower(c)); };
  std::string suffix = name.substr(last + 1);
  std::ranges::transform(suffix, suffix.begin(), lower);
  const bool bits = suffix.size() > 1 && suffix[0] == 'q' && suffix[1] >= '1' && suffix[1] <= '9';
  if (!bits && suffix != "quantized" && suffix != "quant" && suffix != "bnb4") return "";
  const std::string before = name.substr(0, last);
  return before.ends_with("_DQ") ? before.substr(0, before.size() - 3) : before;
}

// Whether a node, of a branch too, has to do with codes.
bool HasCodes(const onnx::GraphProto& graph) {
  static const std::set<std::string_view> kOps = {
      "DequantizeLinear", "DynamicQuantizeMatMul", "GatherBlockQuantized",
      "MatMulBnb4",       "MatMulInteger",         "MatMulIntegerToFloat",
      "QAttention",       "MatMulNBits",           "QGemm"};
  return std::ranges::any_of(graph.node(), [](const NodeProto& node) {
    return kOps.contains(node.op_type()) || node.op_type().starts_with("QLinear") ||
           std::ranges::any_of(node.attribute(),
                               [](const auto& attr) { return attr.has_g() && HasCodes(attr.g()); });
  });
}

class Dequantizer final : public GraphRewriter {
 public:
  Dequantizer(LoadedModel& model, TensorReader& reader) : GraphRewriter(model), reader_(reader) {}

  Strings Notes() {
    Run();
    if (changed_) EraseUnread(model_, std::move(unread_));
    Strings notes;
    if (const size_t count = weights_.size(); count > 0) {
      notes.push_back(StrCat(count, count == 1 ? " weight is" : " weights are",
                             " small integers with scales in the file, and floats here"));
    }
    for (const std::vector<Weight>& made : weights_of_) {
      if (made.size() < 2) continue;
      notes.push_back(MadeOfTheSame(made[0].name, made[1].name));
    }
    return notes;
  }

 private:
  // What became of codes, in the order of their dims or with the two swapped.
  struct Weight {
    std::string name;
    Layout layout;
    bool swapped;
  };

  bool Rewrite(const NodeProto& node) override {
    const bool microsoft = node.domain() == "com.microsoft";
    const bool own = NormalDomain(node.domain()).empty();
    const std::string& op = node.op_type();
    if ((!microsoft && !own) || OutputOf(node).empty()) return false;
    bool done = false;
    if (op == "DequantizeLinear") {
      done = Dequantized(node);
    } else if (own && op == "Mul") {
      done = ScaledProduct(node);
    } else if (op.starts_with("QLinear") || op == "QGemm") {
      done = OfCodes(node);
    } else if (microsoft && op == "QAttention") {
      done = Attention(node);
    } else if (microsoft && op == "MatMulNBits") {
      done = ProductOfBits(node);
    } else if (microsoft && op == "MatMulBnb4") {
      done = ProductOfBnb4(node);
    } else if (microsoft && op == "GatherBlockQuantized") {
      done = LookedUp(node);
    } else if (microsoft && op == "DynamicQuantizeMatMul") {
      done = DynamicProduct(node);
    } else if (microsoft && op == "MatMulIntegerToFloat") {
      done = ProductOfIntegers(node);
    }
    changed_ |= done;
    return done;
  }

  bool Dequantized(const NodeProto& node) {
    const Linear linear = {InputOf(node, 0),
                           InputOf(node, 1),
                           InputOf(node, 2),
                           IntOr(node, "axis", 1),
                           IntOr(node, "block_size", 0),
                           static_cast<int>(IntOr(node, "output_dtype", 0))};
    const std::string floats = Floats(linear, node, node.output(0));
    if (!floats.empty()) Replace(node, floats);
    return !floats.empty();
  }

  bool IsOneNumber(const std::string& name) const {
    const Stored* stored = TensorOf(name);
    return stored != nullptr ? NumElements(stored->dims) == 1
                             : Is(MakerOf(name), "DynamicQuantizeLinear");
  }

  std::vector<Weight>& MadeOf(const TensorProto* codes) {
    const auto [place, is_new] = place_of_.try_emplace(codes, weights_of_.size());
    if (is_new) weights_of_.emplace_back();
    return weights_of_[place->second];
  }

  // The floats that the codes stand for: a tensor of the file, or where codes are moved, their
  // floats as they are moved, called `as`. Empty where there are no such; nothing was added then.
  std::string Floats(const Linear& linear, const NodeProto& like, const std::string& as,
                     int moves = 0) {
    if (const Stored* codes = TensorOf(linear.codes)) {
      const Stored* scales = TensorOf(linear.scale);
      const Stored* zeros = TensorOf(linear.zero);
      if (scales == nullptr || (zeros == nullptr && !linear.zero.empty())) return "";
      const QuantizedParts parts = {codes, scales, zeros};
      return AddWeight(parts, {linear.codes, linear.scale, linear.zero}, like,
                       LinearLayout(reader_, parts, linear.axis, linear.block, linear.type), false,
                       moves == 0 ? as : "");
    }
    const NodeProto* maker = MakerOf(linear.codes);
    if (moves > 0 && (Is(maker, "QuantizeLinear") || Is(maker, "DynamicQuantizeLinear")))
      return EmitDequantize(linear, like, as);
    if (maker == nullptr || !MovesElements(*maker) || moves == kMaxMoves || linear.block != 0 ||
        !IsOneNumber(linear.scale) || !(linear.zero.empty() || IsOneNumber(linear.zero))) {
      return "";
    }
    NodeProto moved = *maker;
    Linear before = linear;
    before.codes = InputOf(moved, 0);
    const std::string floats =
        Floats(before, like, NewName(StrCat(before.codes, "_floats")), moves + 1);
    if (floats.empty()) return "";
    moved.set_input(0, floats);
    moved.set_output(0, as);
    Keep(std::move(moved));
    unread_.insert(linear.codes);
    return as;
  }

  std::string EmitDequantize(const Linear& linear, const NodeProto& like, const std::string& as) {
    Emit("DequantizeLinear", {linear.codes, linear.scale, linear.zero}, like, as);
    if (linear.axis != 1 && !IsOneNumber(linear.scale)) {
      AddAttribute("axis", onnx::AttributeProto::INT).set_i(linear.axis);
    }
    if (linear.type != 0)
      AddAttribute("output_dtype", onnx::AttributeProto::INT).set_i(linear.type);
    return as;
  }

  // Floats, of what is none of the file's, too.
  std::string AnyFloats(const Linear& linear, const NodeProto& like) {
    const std::string as = NewName(StrCat(linear.codes, "_floats"));
    const std::string floats = Floats(linear, like, as);
    return floats.empty() ? EmitDequantize(linear, like, as) : floats;
  }

  // The tensor of floats that `layout` gives of these parts, which were read by these names. Empty
  // without a layout. It may have the name `freed`, which nothing else has any longer.
  std::string AddWeight(const QuantizedParts& parts, const Strings& read, const NodeProto& like,
                        const Layout& layout, bool swapped, const std::string& freed = "") {
    if (layout == nullptr) return "";
    for (const std::string& name : read) {
      unread_.insert(name);
      weights_.erase(name);
    }
    const TensorType& type = layout->type();
    std::vector<Weight>& made = MadeOf(parts.codes->tensor);
    for (const Weight& known : made) {
      if (!known.layout->IsSame(*layout, known.swapped != swapped)) continue;
      if (known.swapped == swapped) return known.name;
      const std::string turned =
          Emit("Transpose", {known.name}, like, NewName(StrCat(known.name, "_transposed")));
      auto& perm = AddAttribute("perm", onnx::AttributeProto::INTS);
      perm.add_ints(1);
      perm.add_ints(0);
      return turned;
    }
    const std::string& of_tensor = parts.codes->tensor->name();  // a Constant's may have none
    const std::string& codes = of_tensor.empty() ? read[0] : of_tensor;
    const std::string before = BeforeQuantizing(codes);
    const bool is_free = !before.empty() && before == freed && !InBranch();
    const std::string name =
        is_free ? freed : NewName(before.empty() ? StrCat(codes, "_floats") : before);
    Bytes data;
    data.computed = layout;
    AddTensor(name, OnnxTypeOf(type.dtype), type.shape, std::move(data));
    made.push_back({name, layout, swapped});
    weights_.insert(name);
    return name;
  }

  // The same of a node's inputs 1 and 2, and of input `zeros` where it has one.
  template <typename MakeLayout>
  std::string WeightOf(const NodeProto& node, int codes, int scales, int zeros, bool swapped,
                       const MakeLayout& make) {
    const Strings read = {InputOf(node, codes), InputOf(node, scales), InputOf(node, zeros)};
    const std::optional<Stored> c = Reshaped(read[0]), s = Reshaped(read[1]), z = Reshaped(read[2]);
    if (!c || !s || (!z && !read[2].empty())) return "";
    const QuantizedParts parts = {&*c, &*s, z ? &*z : nullptr};
    return AddWeight(parts, read, node, make(parts), swapped);
  }

  // A tensor of the file, also under another shape.
  std::optional<Stored> Reshaped(const std::string& name) {
    if (const Stored* stored = TensorOf(name)) return *stored;
    const NodeProto* maker = MakerOf(name);
    if (!Is(maker, "Reshape")) return std::nullopt;
    const Stored *of = TensorOf(InputOf(*maker, 0)), *shape = TensorOf(InputOf(*maker, 1));
    if (of == nullptr || shape == nullptr || shape->tensor->data_type() != TensorProto::INT64)
      return std::nullopt;
    const HostTensor dims = reader_.Read(*shape->tensor, shape->raw);
    const int64_t all = NumElements(of->dims);
    Shape to;
    int64_t known = 1;
    for (int64_t i = 0; i < dims.num_elements(); ++i) {
      const int64_t dim = dims.AsInt(i);
      if (dim == 0 && std::cmp_greater_equal(i, of->dims.size())) return std::nullopt;
      to.push_back(dim == 0 ? of->dims[static_cast<size_t>(i)] : dim);
      if (to.back() < -1) return std::nullopt;
      if (to.back() <= 0) continue;
      if (known > std::max<int64_t>(all, 1) / to.back()) return std::nullopt;
      known *= to.back();
    }
    for (int64_t& dim : to) {
      if (dim == -1) dim = known == 0 ? 0 : all / known;
    }
    if (NumElements(to) != all) return std::nullopt;
    return Stored{of->tensor, of->raw, std::move(to)};
  }

  // a times a weight, plus a bias, as the node's result. False without a weight.
  bool Product(const NodeProto& node, const std::string& a, const std::string& weight,
               const std::string& bias) {
    if (weight.empty()) return false;
    const std::string& result = node.output(0);
    if (bias.empty()) {
      Emit("MatMul", {a, weight}, node, result);
    } else {
      const std::string product = NewName(StrCat(result, "_product"));
      Emit("MatMul", {a, weight}, node, product);
      Emit("Add", {product, bias}, node, result);
    }
    return true;
  }

  bool ProductOfBits(const NodeProto& node) {
    const std::string& group = InputOf(node, 4);
    const Stored* groups = TensorOf(group);
    if (groups == nullptr && !group.empty()) return false;
    const std::string weight = WeightOf(node, 1, 2, 3, true, [&](const QuantizedParts& parts) {
      return NBitsLayout(reader_, parts, groups, node);
    });
    if (!group.empty()) unread_.insert(group);
    return Product(node, InputOf(node, 0), weight, InputOf(node, 5));
  }

  bool ProductOfBnb4(const NodeProto& node) {
    const std::string weight =
        WeightOf(node, 1, 2, -1, IntOr(node, "transB", 1) != 0,
                 [&](const QuantizedParts& parts) { return Bnb4Layout(reader_, parts, node); });
    return Product(node, InputOf(node, 0), weight, "");
  }

  bool LookedUp(const NodeProto& node) {
    const std::string table = WeightOf(node, 0, 2, 3, false, [&](const QuantizedParts& parts) {
      return TableLayout(reader_, parts, node);
    });
    if (table.empty()) return false;
    Emit("Gather", {table, InputOf(node, 1)}, node, node.output(0));
    const int64_t axis = IntOr(node, "gather_axis", 0);
    if (axis != 0) AddAttribute("axis", onnx::AttributeProto::INT).set_i(axis);
    return true;
  }

  // MatMulInteger's operands have a scale each, whose product scales its result once that is cast.
  bool ScaledProduct(const NodeProto& node) {
    for (int i = 0; i < 2; ++i) {
      const NodeProto *cast = MakerOf(InputOf(node, i)), *scale = MakerOf(InputOf(node, 1 - i));
      if (!Is(cast, "Cast") || !Is(scale, "Mul")) continue;
      const NodeProto* product = MakerOf(InputOf(*cast, 0));
      if (!Is(product, "MatMulInteger")) continue;
      const std::string of_a = ScaleOf(InputOf(*product, 0)), &zero_of_a = InputOf(*product, 2);
      for (int j = 0; j < 2; ++j) {
        if (of_a.empty() || InputOf(*scale, j) != of_a || !IsOneNumber(of_a) ||
            !(zero_of_a.empty() || IsOneNumber(zero_of_a)))
          continue;
        const Linear b = {InputOf(*product, 1), InputOf(*scale, 1 - j), InputOf(*product, 3), -1};
        const std::string weight = Floats(b, *product, NewName(StrCat(b.codes, "_floats")));
        if (weight.empty()) continue;
        const std::string a = AnyFloats({InputOf(*product, 0), of_a, zero_of_a}, *product);
        Emit("MatMul", {a, weight}, *product, node.output(0));
        unread_.insert({InputOf(node, 0), InputOf(node, 1)});
        return true;
      }
    }
    return false;
  }

  // By what activations were quantized; empty: by nothing that is known.
  std::string ScaleOf(const std::string& codes) const {
    const NodeProto* maker = MakerOf(codes);
    for (int moves = 0; maker != nullptr && MovesElements(*maker) && moves < kMaxMoves; ++moves) {
      maker = MakerOf(InputOf(*maker, 0));
    }
    if (Is(maker, "QuantizeLinear")) return InputOf(*maker, 1);
    return Is(maker, "DynamicQuantizeLinear") && maker->output_size() > 1 ? maker->output(1) : "";
  }

  // An op of codes, of which each has a scale and a zero point behind it, as that of floats.
  bool OfCodes(const NodeProto& node) {
    struct Form {
      const char* op;
      std::vector<int> operands;
      int result;  // the place of its scale
    };
    static const std::map<std::string, Form> kForms = {{"QGemm", {"Gemm", {0, 3}, 7}},
                                                       {"QLinearAdd", {"Add", {0, 3}, 6}},
                                                       {"QLinearMatMul", {"MatMul", {0, 3}, 6}},
                                                       {"QLinearMul", {"Mul", {0, 3}, 6}},
                                                       {"QLinearLeakyRelu", {"LeakyRelu", {0}, 3}},
                                                       {"QLinearSigmoid", {"Sigmoid", {0}, 3}},
                                                       {"QLinearSoftmax", {"Softmax", {0}, 3}}};
    static const std::set<std::string> kKept = {"alpha", "axis", "transA", "transB"};
    const auto found = kForms.find(node.op_type());
    const bool joins = node.op_type() == "QLinearConcat";
    if (found == kForms.end() && !joins) return false;
    Form form = joins ? Form{"Concat", {}, 0} : found->second;
    if (node.op_type() != "QGemm" && InputOf(node, form.result).empty()) return false;
    // Before opset 13 a Softmax is one of all dims from the axis on.
    const bool softmax = node.op_type() == "QLinearSoftmax";
    if (softmax && (IntOr(node, "opset", 0) < 13 || model_.opsets.at("") < 13)) return false;
    for (int i = 2; joins && i < node.input_size(); i += 3) form.operands.push_back(i);
    std::vector<std::string> floats;
    for (const int i : form.operands) {
      // Of a product the first operand may have a scale for each row, the second for each column.
      const bool by_rows = i == 0 || IntOr(node, "transB", 0) != 0;
      const int64_t axis = by_rows ? -2 : -1;
      floats.push_back(
          AnyFloats({InputOf(node, i), InputOf(node, i + 1), InputOf(node, i + 2), axis}, node));
    }
    if (node.op_type() == "QGemm" && !InputOf(node, 6).empty()) {
      const std::string scale =
          ProductOf(InputOf(node, 1), InputOf(node, 4), FloatOr(node, "alpha", 1));
      if (scale.empty()) return false;
      floats.push_back(AnyFloats({InputOf(node, 6), scale, "", -1}, node));
    }
    const std::string scale = InputOf(node, form.result), zero = InputOf(node, form.result + 1);
    const std::string result =
        scale.empty() ? node.output(0) : NewName(StrCat(node.output(0), "_floats"));
    Emit(form.op, std::move(floats), node, result);
    for (const auto& attr : node.attribute()) {
      if (kKept.contains(attr.name())) *Last().add_attribute() = attr;
    }
    if (!scale.empty()) Emit("QuantizeLinear", {result, scale, zero}, node, node.output(0));
    return true;
  }

  // ONNX Runtime's Attention of codes.
  bool Attention(const NodeProto& node) {
    const Linear x = {InputOf(node, 0), InputOf(node, 3), InputOf(node, 6), -1};
    const Linear w = {InputOf(node, 1), InputOf(node, 4), InputOf(node, 7), -1};
    const std::string weight = Floats(w, node, NewName(StrCat(w.codes, "_floats")));
    if (weight.empty()) return false;
    NodeProto attention = node;  // with its attributes and its other outputs
    attention.set_op_type("Attention");
    attention.clear_input();
    for (const std::string& input :
         {AnyFloats(x, node), weight, InputOf(node, 2), InputOf(node, 5), InputOf(node, 8)}) {
      attention.add_input(input);
    }
    Keep(std::move(attention));
    return true;
  }

  // The scale of a bias beside a product: those of the operands, multiplied. Empty where they are
  // no tensors of the file.
  std::string ProductOf(const std::string& a, const std::string& b, double factor) {
    const Stored *one = TensorOf(a), *many = TensorOf(b);
    if (!one || !many || NumElements(one->dims) != 1) return "";
    const StoredElements x = reader_.Elements(*one->tensor, one->raw);
    const StoredElements y = reader_.Elements(*many->tensor, many->raw);
    const std::string name = NewName(StrCat(b, "_of_bias"));
    TensorProto& scales = AddTensor(name, TensorProto::FLOAT, many->dims);
    for (int64_t i = 0; i < NumElements(many->dims); ++i)
      scales.add_float_data(static_cast<float>(x.At(0) * y.At(i) * factor));
    return name;
  }

  bool DynamicProduct(const NodeProto& node) {
    const std::string& x = InputOf(node, 0);
    const Linear b = {InputOf(node, 1), InputOf(node, 2), InputOf(node, 3), -1};
    const std::string weight = Floats(b, node, NewName(StrCat(b.codes, "_floats")));
    if (weight.empty()) return false;
    const Linear a = {NewName(StrCat(x, "_codes")), NewName(StrCat(x, "_scale")),
                      NewName(StrCat(x, "_zero"))};
    Emit("DynamicQuantizeLinear", {x}, node, a.codes);
    AddOutput(a.scale);
    AddOutput(a.zero);
    return Product(node, AnyFloats(a, node), weight, InputOf(node, 4));
  }

  bool ProductOfIntegers(const NodeProto& node) {
    const Linear a = {InputOf(node, 0), InputOf(node, 2), InputOf(node, 4), -1};
    const Linear b = {InputOf(node, 1), InputOf(node, 3), InputOf(node, 5), -1};
    const std::string weight = Floats(b, node, NewName(StrCat(b.codes, "_floats")));
    return !weight.empty() && Product(node, AnyFloats(a, node), weight, InputOf(node, 6));
  }

  TensorReader& reader_;
  std::set<std::string> weights_;                  // but those that are scales of others
  std::map<const TensorProto*, size_t> place_of_;  // of codes, in:
  std::vector<std::vector<Weight>> weights_of_;
  std::set<std::string> unread_;  // what the quantized form read, and may be all that did
  bool changed_ = false;
};

}  // namespace

std::string MadeOfTheSame(const std::string& one, const std::string& other) {
  return StrCat(
      "'", one, "' and '", other,
      "' are made of the same integers, but two tensors here, and where they are trained, "
      "trained apart");
}

Strings DequantizeWeights(LoadedModel& model, TensorReader& reader) {
  return HasCodes(model.proto.graph()) ? Dequantizer(model, reader).Notes() : Strings();
}

}  // namespace shardc::onnx_import
