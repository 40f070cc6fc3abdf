#include "frontend/onnx/node.h"

#include <utility>

#include "frontend/onnx/convert_util.h"
#include "frontend/onnx/delicate.h"
#include "frontend/onnx/fold.h"
#include "frontend/onnx/load_model.h"
#include "frontend/onnx/narrow.h"
#include "ir/constant.h"
#include "ir/op_def.h"

namespace shardc::onnx_import {

using onnx::AttributeProto;

namespace {

// Attributes that the converters need not read: they choose among results that are all right, say
// what the operands' shapes say, or belong to an operand or a result that the node lacks; and
// tools' own notes, "__name", which onnx.checker lets pass.
bool HasNoEffect(std::string_view op, std::string_view attribute) {
  static const std::set<std::pair<std::string_view, std::string_view>> kWithout = {
      {"Attention", "kv_num_heads"},
      {"Attention", "mask_filter_value"},
      {"Attention", "q_num_heads"},
      {"Attention", "qk_matmul_output_mode"},
      {"Attention", "rotary_embedding_dim"},
      {"Attention", "softmax_precision"},
      {"BatchNormalization", "momentum"},
      {"Cast", "round_mode"},
      {"Cast", "saturate"},
      {"CastLike", "round_mode"},
      {"CastLike", "saturate"},
      {"Conv", "kernel_shape"},
      {"ConvTranspose", "kernel_shape"},
      {"Dropout", "ratio"},
      {"Dropout", "seed"},
      {"EmbedLayerNormalization", "mask_index_type"},
      {"FusedConv", "kernel_shape"},
      {"FusedGemm", "activation_gamma"},
      {"FusedGemm", "beta"},
      {"Gemm", "beta"},
      {"GroupNormalization", "stash_type"},
      {"GroupQueryAttention", "kv_cache_bit_width"},
      {"GroupQueryAttention", "qk_output"},
      {"GroupQueryAttention", "rotary_interleaved"},
      {"GroupQueryAttention", "smooth_softmax"},
      {"LayerNormalization", "stash_type"},
      {"MaxPool", "storage_order"},
      {"MultiHeadAttention", "mask_filter_value"},
      {"QuantizeLinear", "saturate"},
      {"Range", "stash_type"},
      {"Resize", "cubic_coeff_a"},
      {"Resize", "exclude_outside"},
      {"Resize", "extrapolation_value"},
      {"Resize", "keep_aspect_ratio_policy"},
      {"Resize", "nearest_mode"},
      {"RMSNormalization", "stash_type"},
      {"RotaryEmbedding", "num_heads"},
      {"SimplifiedLayerNormalization", "stash_type"},
      {"SplitToSequence", "keepdims"},
      {"TopK", "sorted"},
  };
  return attribute == "noop_with_empty_axes" || attribute.starts_with("__") ||
         kWithout.contains({op, attribute});
}

bool TakesShape(std::string_view op) {
  return op == "Reshape" || op == "Expand" || op == "ConstantOfShape" || op == "Slice";
}

}  // namespace

Node::Node(Conversion& conversion, const onnx::NodeProto& proto)
    : conversion_(conversion), proto_(proto) {
  for (const std::string& name : proto.input()) {
    if (name.empty()) {
      inputs_.push_back(nullptr);
      continue;
    }
    auto it = conversion.values.find(name);
    if (it == conversion.values.end()) {
      if (conversion.sequences.contains(name)) {
        inputs_.push_back(nullptr);
        continue;
      }
      Fail("E1308", StrCat("reads '", name, "', which no input, tensor or node before it is"),
           "the nodes of a model have to be in order, and its weights in it (export_params=True): "
           "onnx.checker tells more");
    }
    inputs_.push_back(it->second);
  }
}

int Node::opset() const {
  auto it = conversion_.opsets.find(NormalDomain(proto_.domain()));
  return it == conversion_.opsets.end() ? 1 : it->second;
}

Value* Node::InputOrNull(int i) const {
  if (i < 0 || i >= num_inputs()) return nullptr;
  if (IsSequence(i)) Fail("E1303", StrCat("its input ", i, " is a sequence of tensors"), "");
  inputs_read_.insert(i);
  return inputs_[i];
}

bool Node::OutputWanted(int i) const {
  return i >= 0 && i < num_outputs() && conversion_.wanted.contains(proto_.output(i));
}

int64_t Node::NarrowType(int i) const {
  if (i < 0 || i >= num_inputs()) return 0;
  auto it = conversion_.narrow.find(proto_.input(i));
  return it == conversion_.narrow.end() ? 0 : it->second;
}

void Node::SetOutput(int i, Value* value) {
  SetOutput(i, value, NarrowType(TypedLike(op_type(), i)));
}

void Node::SetOutput(int i, Value* value, int64_t onnx_type) {
  SHARDC_CHECK(value != nullptr && i >= 0, op_type());
  if (i >= num_outputs() || proto_.output(i).empty()) return;
  const std::string& name = proto_.output(i);
  if (IsNarrow(onnx_type) && value->type.dtype == HeldAs(static_cast<int>(onnx_type))) {
    value = Wrapped(*this, value, onnx_type);
    conversion_.narrow[name] = onnx_type;
  }
  if (!conversion_.values.emplace(name, value).second) {
    Fail("E1308", StrCat("makes '", name, "', which there is already"), "");
  }
  if (value->producer != nullptr && value->name.empty()) value->name = name;
}

Steps Node::StepsOf(const Value* codes) const {
  const auto it = conversion_.steps.find(codes);
  return it == conversion_.steps.end() ? Steps{} : it->second;
}

bool Node::IsSequence(int i) const {
  return i < num_inputs() && conversion_.sequences.contains(proto_.input(i));
}

void Node::SetSequence(int i, std::vector<Value*> elements) {
  SetSequence(i, std::move(elements), NarrowType(0));
}

void Node::SetSequence(int i, std::vector<Value*> elements, int64_t onnx_type) {
  const std::string& name = proto_.output(i);
  if (IsNarrow(onnx_type)) conversion_.narrow[name] = onnx_type;
  conversion_.sequences[name] = std::move(elements);
}

const std::vector<Value*>& Node::Sequence(int i) const {
  if (!IsSequence(i)) Fail("E1303", StrCat("its input ", i, " is no sequence of tensors"), "");
  return conversion_.sequences.find(proto_.input(i))->second;
}

void Node::CheckOutputs() const {
  for (int i = 0; i < num_outputs(); ++i) {
    const std::string& name = proto_.output(i);
    if (OutputWanted(i) && !conversion_.values.contains(name) &&
        !conversion_.sequences.contains(name)) {
      Fail("E1301", StrCat("its output ", i, ", '", proto_.output(i), "', is not supported"), "");
    }
  }
}

Value* Node::Harmless(Value* v, std::string_view op) {
  const ChosenRows::Mark* found = rows().Of(v);
  if (found == nullptr || ConstantOf(v) != nullptr || IsKnownPositive(v)) return v;
  const ChosenRows::Mark mark = *found;
  const ChosenRows::Pause pause(rows());
  const int64_t n = ChosenRows::RowsOf(mark), each = v->type.shape[mark.dim] / n;
  shardc::Shape along(v->type.rank(), 1);
  along[mark.dim] = n * each;
  Value* chosen = Reshape(BroadcastTo(Reshape(mark.chosen, {n, 1}), {n, each}), along);
  const double instead = op.starts_with("gather") ? 0 : IsFloat(v->type.dtype) ? 0.5 : 1;
  Value* harmless = onnx_import::Where(*this, chosen, v, Like(*this, v, instead));
  rows().Set(harmless, mark);
  return harmless;
}

void Node::CheckShape(int input, Value* made) {
  Value* v = inputs_[input];
  const bool sliced = op_type() == "Slice";
  if (rows().IsCount(v)) {
    bool fits = !sliced && rows().TakeShape(made, v);
    if (sliced && input == 2 && made == inputs_[0]) {
      const HostTensor* axes =
          num_inputs() > 3 && inputs_[3] ? shardc::ConstantOf(inputs_[3]) : nullptr;
      std::vector<int> dims;
      for (int64_t i = 0; i < v->type.num_elements(); ++i) {
        const int64_t axis = axes != nullptr ? axes->AsInt(i) : i;
        dims.push_back(static_cast<int>(axis < 0 ? axis + made->type.rank() : axis));
      }
      fits = rows().EndsBehind(made, dims, v);
    }
    if (!fits) Fail("E1301", "takes as many as rows are chosen when the model runs", kDataDecides);
    return;
  }
  const ChosenRows::Mark *mark = rows().Of(made), *from = rows().Of(inputs_[0]);
  const HostTensor* shape = shardc::ConstantOf(v);
  if (op_type() != "Reshape" || mark == nullptr || from == nullptr || shape == nullptr) return;
  const int64_t size = shape->AsInt(mark->dim);
  if (size == -1 || (size == 0 && from->dim == mark->dim)) return;
  Fail("E1301", StrCat("makes ", size, " of rows that are chosen when the model runs"),
       kDataDecides);
}

void Node::CheckRows() {
  static const std::set<std::string_view> kPutBack = {"ScatterND", "ScatterElements", "Scatter"};
  bool reads = false;
  for (Value* v : inputs_) {
    reads |= v != nullptr && rows().Of(v) != nullptr;
  }
  if (TakesShape(op_type())) {
    auto made = conversion_.values.find(proto_.output(0));
    for (int i = op_type() == "ConstantOfShape" ? 0 : 1; i < num_inputs(); ++i) {
      if (inputs_[i] == nullptr || made == conversion_.values.end()) continue;
      CheckShape(i, made->second);
      reads |= rows().Of(made->second) != nullptr;
    }
  }
  if (!reads || kPutBack.contains(op_type()) || op_type() == "Shape" || op_type() == "Size") return;
  for (const std::string& name : proto_.output()) {
    auto made = conversion_.values.find(name);
    if (made == conversion_.values.end() || rows().Of(made->second) != nullptr) continue;
    Fail("E1301", "does not make rows of rows that are chosen only when the model runs",
         kDataDecides);
  }
}

const AttributeProto* Node::Find(std::string_view name) const {
  for (const AttributeProto& attr : proto_.attribute()) {
    if (attr.name() != name) continue;
    attributes_read_.insert(attr.name());
    return &attr;
  }
  return nullptr;
}

void Node::CheckRead() const {
  for (int i = 0; i < num_inputs(); ++i) {
    if (inputs_[i] == nullptr || inputs_read_.contains(i)) continue;
    Fail("E1301", StrCat("its input ", i, ", '", proto_.input(i), "', is not supported"), "");
  }
  for (const AttributeProto& attr : proto_.attribute()) {
    const bool holds_nodes = attr.type() == AttributeProto::GRAPH;
    if (attributes_read_.contains(attr.name()) || holds_nodes ||
        HasNoEffect(op_type(), attr.name()))
      continue;
    Fail("E1301", StrCat("its attribute '", attr.name(), "' is not supported"),
         StrCat("opset ", opset(), " may have it, or not: onnx.checker tells"));
  }
}

const AttributeProto* Node::Find(std::string_view name, AttributeProto::AttributeType type) const {
  const AttributeProto* attr = Find(name);
  if (attr != nullptr && attr->type() != type) {
    Fail("E1303",
         StrCat("attribute '", name, "' is ", AttributeProto::AttributeType_Name(attr->type()),
                "; it has to be ", AttributeProto::AttributeType_Name(type)),
         "");
  }
  return attr;
}

int64_t Node::Int(std::string_view name, int64_t otherwise) const {
  const AttributeProto* attr = Find(name, AttributeProto::INT);
  return attr ? attr->i() : otherwise;
}

double Node::Float(std::string_view name, double otherwise) const {
  const AttributeProto* attr = Find(name, AttributeProto::FLOAT);
  return attr ? static_cast<double>(attr->f()) : otherwise;
}

std::string Node::String(std::string_view name, std::string otherwise) const {
  const AttributeProto* attr = Find(name, AttributeProto::STRING);
  return attr ? attr->s() : std::move(otherwise);
}

std::optional<Ints> Node::IntList(std::string_view name) const {
  const AttributeProto* attr = Find(name, AttributeProto::INTS);
  if (attr == nullptr) return std::nullopt;
  return Ints(attr->ints().begin(), attr->ints().end());
}

std::optional<std::vector<double>> Node::FloatList(std::string_view name) const {
  const AttributeProto* attr = Find(name, AttributeProto::FLOATS);
  if (attr == nullptr) return std::nullopt;
  return std::vector<double>(attr->floats().begin(), attr->floats().end());
}

std::optional<std::vector<std::string>> Node::StringList(std::string_view name) const {
  const AttributeProto* attr = Find(name, AttributeProto::STRINGS);
  if (attr == nullptr) return std::nullopt;
  return std::vector<std::string>(attr->strings().begin(), attr->strings().end());
}

std::optional<HostTensor> Node::Tensor(std::string_view name) const {
  const AttributeProto* attr = Find(name, AttributeProto::TENSOR);
  if (attr == nullptr) return std::nullopt;
  return conversion_.reader.Read(attr->t(), nullptr);
}

int64_t Node::TypeOfTensor(std::string_view name) const {
  const AttributeProto* attr = Find(name, AttributeProto::TENSOR);
  return attr ? attr->t().data_type() : 0;
}

const HostTensor* Node::ConstantOf(Value* value) const {
  if (conversion_.rows.IsCount(value) && !TakesShape(op_type())) {
    Fail("E1301", "computes with how many rows are chosen when the model runs",
         "sum over a mask to count them");
  }
  return shardc::ConstantOf(value);
}

Value* Node::Make(std::string_view op, std::vector<Value*> operands, Attributes attrs) {
  std::vector<Value*> results = MakeAll(op, std::move(operands), std::move(attrs));
  SHARDC_CHECK(results.size() == 1, op);
  return results[0];
}

std::vector<Value*> Node::MakeAll(std::string_view op, std::vector<Value*> operands,
                                  Attributes attrs) {
  DropEmptyPieces(op, operands, attrs);
  if (op == "concat" && operands.size() == 1) return operands;
  if (const int i = DelicateOperand(op, operands); i >= 0) operands[i] = Harmless(operands[i], op);
  // What ONNX Runtime's reductions of integers give beyond their range is an accident.
  const bool may_wrap = !op_type().starts_with("Reduce");
  // Positions of chosen rows that are repeated along another dim are as many as its elements.
  const bool spreads = op == "broadcast_to" && rows().Of(operands[0]) != nullptr;
  std::optional<std::vector<HostTensor>> folded;
  if (!spreads) folded = Fold(op, operands, attrs, conversion_.fold_bytes, may_wrap);
  if (!folded) folded = EmptyResults(op, operands, attrs);
  if (!folded) {
    const Op* made = conversion_.builder.Create(op, std::move(operands), std::move(attrs));
    rows().Follow(*made);
    return made->results;
  }
  Op made;
  made.def = &GetOpDef(op);
  made.attrs = std::move(attrs);
  made.operands = std::move(operands);
  for (HostTensor& value : *folded) {
    made.results.push_back(conversion_.builder.Constant(std::move(value)));
  }
  rows().FollowFolded(made);
  return made.results;
}

std::string Node::Where() const {
  std::string domain = NormalDomain(proto_.domain());
  return StrCat(conversion_.path, ": node '", proto_.name(), "' (",
                domain.empty() ? "" : domain + "::", op_type(), ")");
}

void Node::Fail(const char* id, const std::string& what, const std::string& fix) const {
  throw Diagnostic(id, ExitCode::kBadModel, Where(), what, fix);
}

}  // namespace shardc::onnx_import
