#include "frontend/onnx/params.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <functional>
#include <iterator>
#include <string_view>

#include "frontend/onnx/aliases.h"
#include "frontend/onnx/read_pieces.h"
#include "frontend/onnx/uses.h"

namespace shardc::onnx_import {
namespace {

using onnx::NodeProto;
using onnx::TensorProto;
using Ops = std::set<std::string_view>;

// Their result is input 0 (or any input, for the last line) in another arrangement or scale.
const Ops kPassOn = {"Identity", "Transpose", "Reshape",   "Unsqueeze", "Squeeze", "Flatten",
                     "Expand",   "Tile",      "Cast",      "CastLike",  "Slice",   "Split",
                     "Pad",      "Dropout",   "Neg",       "Abs",       "Exp",     "Log",
                     "Sqrt",     "Pow",       "Clip",      "Tanh",      "Sigmoid", "Softplus",
                     "Concat",   "Where",     "Reciprocal"};
const Ops kPassOnInSequences = {"SplitToSequence", "SequenceAt", "SequenceConstruct",
                                "ConcatFromSequence"};
// Of kPassOn: how a model keeps a rate or a scale that it trains (as its logarithm), but no table.
const Ops kReparametrize = {"Exp", "Log", "Sigmoid", "Tanh", "Softplus"};
const Ops kLookUp = {"Gather", "GatherND", "GatherElements"};
const Ops kReduce = {"ReduceMean", "ReduceSum",       "ReduceMax", "ReduceMin",
                     "ReduceL2",   "ReduceSumSquare", "ReduceL1"};
const Ops kProduct = {"MatMul", "Gemm", "Einsum"};
const Ops kSum = {"Add", "Sub", "Sum"};
const Ops kScale = {"Mul", "Div"};
const Ops kNever = {"Cos",
                    "Sin",
                    "Equal",
                    "Less",
                    "LessOrEqual",
                    "Greater",
                    "GreaterOrEqual",
                    "And",
                    "Or",
                    "Xor",
                    "Not",
                    "Shape",
                    "Size",
                    "IsNaN",
                    "IsInf",
                    "ArgMax",
                    "ArgMin",
                    "Range",
                    "OneHot",
                    "NonZero",
                    "CumSum",
                    "Mod",
                    "ConstantOfShape",
                    "Trilu",
                    "Min",
                    "Max",
                    "TopK",
                    "Floor",
                    "Ceil",
                    "Round",
                    "Sign"};

// Their results are no numbers with a gradient; nor are the positions that TopK gives.
const Ops kDecide = {"ArgMax", "ArgMin",         "Equal", "Less",  "LessOrEqual", "Greater",
                     "IsNaN",  "GreaterOrEqual", "Size",  "Shape", "IsInf"};
constexpr size_t kMaxChoice = 64;  // values on the way from a score to a choice

// Whether the input is added to the scores of an attention that ONNX Runtime fused.
bool IsAddedToScores(std::string_view op, int input) {
  if (op == "GroupQueryAttention") return input == 10;
  return (op == "Attention" || op == "MultiHeadAttention") && input == 5;
}

// What torch.fx calls a tensor that a module holds as neither a parameter nor a buffer.
bool IsConstantOfFx(const std::string& name) {
  constexpr std::string_view kPrefix = "_tensor_constant";
  return name.starts_with(kPrefix) && name.size() > kPrefix.size() &&
         name.find_first_not_of("0123456789", kPrefix.size()) == name.npos;
}

bool IsCandidate(const TensorProto& t) {
  auto held = HeldAs(t.data_type());
  int64_t larger = std::count_if(t.dims().begin(), t.dims().end(), [](int64_t d) { return d > 1; });
  return held && IsFloat(*held) && larger > 0;
}

// A mask's elements are 0 and one very large number, or that number alone, or both 0 and 1.
// Those of a table of distances grow evenly along each row, but for one bend (the query's place).
// ALiBi's slopes of n heads are powers of 2^(-4 / m), with the largest power of two m that is not
// larger than n (Press et al., "Train Short, Test Long", 2022).
enum class Kind { kMask, kZeros, kDistances, kSlopes, kOther };

// Follows one tensor to the places where a network computes with it.
class Evidence {
 public:
  Evidence(const TensorProto& tensor, const Uses& uses, std::function<Kind()> kind)
      : uses_(uses), kind_(std::move(kind)), rank_(tensor.dims_size()) {
    auto larger =
        std::count_if(tensor.dims().begin(), tensor.dims().end(), [](int64_t d) { return d > 1; });
    vector_ = larger <= 1;
    open_.push_back({tensor.name(), false, nullptr});
    while (!open_.empty() && !found_) {
      const Step step = open_.back();
      open_.pop_back();
      if (step.use == nullptr) {
        Follow(step.value, step.row);
      } else {
        found_ = step.use->node == nullptr || Decides(*step.use, step.value, step.row);
      }
    }
  }
  bool found() const { return found_; }

 private:
  // A value to follow, or one of its uses to look at. A chain of nodes may be longer than a stack
  // is deep.
  struct Step {
    std::string value;
    bool row;  // it consists of rows that input data picked
    const Use* use;
  };

  // What is pushed last is next.
  void Follow(const std::string& value, bool row) {
    if (!visited_.insert(value).second) return;
    const std::vector<std::string>& others = uses_.PassedOnAs(value);
    for (auto name = others.rbegin(); name != others.rend(); ++name) {
      open_.push_back({*name, row, nullptr});
    }
    const std::vector<Use>& uses = uses_.Of(value);
    for (auto use = uses.rbegin(); use != uses.rend(); ++use) open_.push_back({value, row, &*use});
  }

  // Decides nothing yet.
  bool FollowOutputs(const NodeProto& node, bool row) {
    for (int i = node.output_size(); i-- > 0;) {
      if (!node.output(i).empty()) open_.push_back({node.output(i), row, nullptr});
    }
    return false;
  }

  bool MeetsActivation(const NodeProto& node, const std::string& value) const {
    return std::any_of(node.input().begin(), node.input().end(), [&](const std::string& name) {
      return name != value && uses_.IsActivation(name);
    });
  }

  bool IsMask() const { return kind_() == Kind::kMask; }
  // As exporters store ALiBi, under no name of the module's. A vector may be trained from a ramp.
  bool IsDistances() const { return !vector_ && kind_() == Kind::kDistances; }

  // Of ALiBi, where the model multiplies them with the distances.
  bool IsSlopes() const { return scales_table_ && kind_() == Kind::kSlopes; }

  // What a tensor is filled with, or begins as; not a vector, which may be a new token.
  bool IsFill() const { return !vector_ && kind_() == Kind::kZeros; }

  // A mask of a batch without padding is all zeros, like a new bias, but added to scores, which may
  // be masked once more.
  bool IsEmptyMask(const NodeProto& sum) const {
    if (rank_ < 3 || kind_() != Kind::kZeros) return false;
    std::vector<std::string> sums = {sum.output(0)};
    for (size_t i = 0; i < sums.size(); ++i) {
      const std::vector<Use>& users = uses_.Of(sums[i]);
      if (users.empty() || sums.size() > kMaxChoice) return false;
      for (const Use& use : users) {
        const std::string op = use.node == nullptr ? "" : use.node->op_type();
        if (op == "Softmax") continue;
        const bool masks = op == "Reshape" || op == "Add" || (op == "Where" && use.input > 0);
        if (!masks) return false;
        sums.push_back(use.node->output(0));
      }
    }
    return true;
  }

  // Whether all that comes of the value are positions and comparisons, as of the scores by which
  // experts are chosen: no gradient reaches what is added to it.
  bool OnlyChooses(const std::string& value) const {
    std::vector<std::string> waiting = {value};
    std::set<std::string> seen;
    bool chooses = false;
    while (!waiting.empty()) {
      const std::string name = std::move(waiting.back());
      waiting.pop_back();
      if (name.empty() || !seen.insert(name).second) continue;
      if (seen.size() > kMaxChoice) return false;
      for (const Use& use : uses_.Of(name)) {
        if (use.node == nullptr) return false;
        const bool top = use.node->op_type() == "TopK";
        chooses |= top || kDecide.contains(use.node->op_type());
        if (kDecide.contains(use.node->op_type())) continue;
        const int outputs = top ? 1 : use.node->output_size();
        for (int i = 0; i < outputs; ++i) waiting.push_back(use.node->output(i));
      }
      for (const std::string& other : uses_.PassedOnAs(name)) waiting.push_back(other);
    }
    return chooses;
  }

  bool Decides(const Use& use, const std::string& value, bool row) {
    const NodeProto& node = *use.node;
    const std::string& op = node.op_type();
    if (kNever.contains(op) || (op == "CastLike" && use.input > 0)) return false;
    if ((op == "Resize" || op == "Upsample") && use.input > 0) return false;  // scales
    if (op == "BatchNormalization" && use.input > 2) return false;            // statistics
    if (op == "SoftmaxCrossEntropyLoss" || op == "NegativeLogLikelihoodLoss") return use.input == 0;
    if (op == "RotaryEmbedding" && use.input > 0) return false;  // cos and sin, or positions
    if (op == "GroupQueryAttention" && use.input > 6 && use.input < 9) return false;  // the same
    if (op == "Attention" && use.input == 3) return false;                            // the mask
    if (IsAddedToScores(op, use.input)) return kind_() == Kind::kOther;
    if (kLookUp.contains(op)) {
      if (use.input != 0) return false;
      vector_ = false;
      return FollowOutputs(node, node.input_size() > 1 && uses_.DependsOnData(node.input(1)));
    }
    if (kReduce.contains(op) || op == "Pow") {
      return use.input == 0 && row ? true : FollowOutputs(node, row);
    }
    const bool chosen = op == "Where" && use.input > 0;
    if (chosen && uses_.DependsOnData(node.input(0)) && IsFill()) return false;
    if (chosen && MeetsActivation(node, value)) return !IsMask() && !IsFill();
    if (op.starts_with("Scatter") && use.input == 0 && IsFill()) return false;
    reparametrized_ |= kReparametrize.contains(op);
    if (kPassOn.contains(op) || kPassOnInSequences.contains(op)) return FollowOutputs(node, row);
    if (kProduct.contains(op)) {
      const bool computed = std::ranges::any_of(node.input(), [&](const std::string& name) {
        return name != value && uses_.IsComputed(name);
      });
      return computed || FollowOutputs(node, row);
    }
    if (kSum.contains(op)) {
      if (!MeetsActivation(node, value)) return FollowOutputs(node, row);
      return !IsMask() && !IsDistances() && !IsSlopes() && !IsEmptyMask(node) &&
             !OnlyChooses(node.output(0));
    }
    if (kScale.contains(op)) {
      if (!MeetsActivation(node, value)) {
        scales_table_ = true;
        return FollowOutputs(node, row);
      }
      return (vector_ || reparametrized_) && !IsMask();
    }
    return true;
  }

  const Uses& uses_;
  std::function<Kind()> kind_;
  int rank_;
  bool vector_ = false;  // one dim at most is larger than 1, and no rows were picked
  bool reparametrized_ = false;
  bool scales_table_ = false;  // or a number
  bool found_ = false;
  std::vector<Step> open_;
  std::set<std::string> visited_;
};

class MaskTest {
 public:
  bool Takes(double v) {
    (v == 0 ? zero_ : v == 1 ? one_ : large_) = true;
    if (v == 0 || v == 1) return true;
    if (!(std::abs(v) >= 1e4) || (has_value_ && v != value_)) return false;
    has_value_ = true;
    value_ = v;
    return true;
  }
  Kind Result() const {
    if (large_ ? !one_ : zero_ && one_) return Kind::kMask;
    return zero_ && !one_ ? Kind::kZeros : Kind::kOther;
  }

 private:
  bool zero_ = false, one_ = false, large_ = false, has_value_ = false;
  double value_ = 0;
};

// Rows of numbers that are not masked, of which one at least has enough of them to tell.
class DistanceTest {
 public:
  // Four roundings of the largest element.
  explicit DistanceTest(DType type)
      : tolerance_(type == DType::kBF16  ? 0x1p-6
                   : type == DType::kF16 ? 0x1p-9
                                         : 1e-5) {}

  bool TakesRow(const HostTensor& t, int64_t begin, int64_t n) {
    std::vector<double> row;
    for (int64_t i = begin; i < begin + n; ++i) {
      const double v = t.AsDouble(i);
      if (v > -1e4 && std::isfinite(v)) row.push_back(v);
    }
    if (row.size() < 4) return true;
    const auto [low, high] = std::minmax_element(row.begin(), row.end());
    const double largest = std::max(std::abs(*low), std::abs(*high));
    // A query has a key at no distance, or next to it; what is much the same everywhere is none.
    if (*high - *low < largest / 2) return false;
    grows_ |= *high > *low;
    int bends = 0;
    for (size_t i = 1; i + 1 < row.size(); ++i) {
      bends += std::abs(row[i + 1] - 2 * row[i] + row[i - 1]) > tolerance_ * largest;
    }
    return bends <= 1;
  }
  bool Result() const { return grows_; }

 private:
  double tolerance_;
  bool grows_ = false;
};

// In any order, as powers of 2^(-4 / m): 2, 4, ... 2 m, and for the heads beyond m 1, 3, ...
bool AreSlopes(const HostTensor& t) {
  const int64_t n = t.num_elements();
  const auto m = static_cast<int64_t>(std::bit_floor(static_cast<uint64_t>(n)));
  std::set<int64_t> powers, expected;
  for (int64_t i = 0; i < n; ++i) {
    const double x = t.AsDouble(i), power = -std::log2(x) * static_cast<double>(m) / 4;
    // Of halves the logarithm is less exact.
    if (!(x > 0 && x < 1) || std::abs(power - std::round(power)) > 0.02) return false;
    powers.insert(std::llround(power));
    expected.insert(i < m ? 2 * (i + 1) : 2 * (i - m) + 1);
  }
  return n >= 2 && powers == expected;
}

Kind Classify(const TensorType& type, const TensorSource& source) {
  MaskTest test;
  DistanceTest distances(type.dtype);
  bool may_mask = true, may_distance = type.rank() >= 2 && type.num_elements() > 1;
  const bool known = HoldsOfPieces(type.shape, [&](const Shape& offset, const Shape& size) {
    const HostTensor piece = ReadPiece(source, type.dtype, offset, size);
    for (int64_t i = 0; may_mask && i < piece.num_elements(); ++i) {
      may_mask = test.Takes(piece.AsDouble(i));
    }
    for (int64_t i = 0; may_distance && i < piece.num_elements(); i += type.shape.back()) {
      may_distance = distances.TakesRow(piece, i, type.shape.back());
    }
    return may_mask || may_distance;
  });
  if (may_mask) return test.Result();
  constexpr int64_t kMaxHeads = 1024;
  const bool vector = std::ranges::count_if(type.shape, [](int64_t dim) { return dim != 1; }) == 1;
  if (vector && type.num_elements() <= kMaxHeads &&
      AreSlopes(ReadPiece(source, type.dtype, Shape(type.rank(), 0), type.shape)))
    return Kind::kSlopes;
  return known && distances.Result() ? Kind::kDistances : Kind::kOther;
}

class Finder {
 public:
  Finder(const LoadedModel& model, const ModuleNames& names, TensorReader& reader)
      : model_(model), names_(names), reader_(reader), uses_(model.proto.graph()) {
    for (const auto& [index, bytes] : model.raw) {
      raw_[&model.proto.graph().initializer(index)] = &bytes;
    }
  }

  Parameters Run() {
    std::set<std::string> candidates;
    for (const TensorProto* t : uses_.initializers()) {
      if (IsCandidate(*t)) candidates.insert(t->name());
    }
    uses_.FlowFrom(model_.proto.graph(), candidates);
    Parameters found;
    std::vector<std::string> params;
    for (const TensorProto* t : uses_.initializers()) {
      if (IsParameter(*t)) {
        params.push_back(t->name());
      } else if (candidates.contains(t->name()) || MayBeTrainedNumber(*t)) {
        found.constants.push_back(t->name());
      }
    }
    FindCopies(params, found);
    std::erase_if(params, [&](const std::string& name) { return found.copies.contains(name); });
    AliasesFound aliases = FindAliases(params, uses_, names_);
    found.aliases = std::move(aliases.of);
    found.sources = std::move(aliases.sources);
    found.transpose_of = std::move(aliases.transpose_of);
    FindComputed(params, found);
    FindMissing(found);
    return found;
  }

 private:
  // Of a matrix alone exporters fold the transpose. A vector with a constant added (1 + weight)
  // trains as the vector does; what was made of it alone, or by a function (its exponential), does
  // not.
  void FindComputed(const std::vector<std::string>& params, Parameters& found) const {
    std::map<std::string, int64_t> ranks, larger;  // dims; those of more than one element
    for (const TensorProto* t : uses_.initializers()) {
      ranks[t->name()] = t->dims_size();
      larger[t->name()] =
          std::count_if(t->dims().begin(), t->dims().end(), [](int64_t d) { return d > 1; });
    }
    for (const std::string& name : params) {
      auto folded = names_.folded_from.find(name);
      if (folded == names_.folded_from.end()) continue;
      const bool alone = folded->second.size() == 1;
      const bool of_function = std::ranges::any_of(folded->second, IsOfFunction);
      if (alone ? larger[name] > 1 : ranks[name] == 1 && !of_function) continue;
      for (const std::string& source : folded->second) {
        if (names_.is_parameter.contains(source)) found.computed_from[name] = source;
      }
    }
  }

  // PyTorch calls a tensor after the function that makes it, with a number: "exp_1".
  static bool IsOfFunction(std::string_view tensor) {
    const size_t end = tensor.find_last_not_of("0123456789");
    if (end != std::string_view::npos && end > 0 && tensor[end] == '_')
      tensor = tensor.substr(0, end);
    static constexpr std::string_view kFunctions[] = {
        "exp",        "log",     "pow",      "sqrt",    "rsqrt",
        "reciprocal", "sigmoid", "softplus", "softmax", "tanh"};
    return std::ranges::find(kFunctions, tensor) != std::end(kFunctions);
  }

  void FindMerged(const std::set<std::string>& known, Parameters& found) const {
    for (const NodeProto& node : model_.proto.graph().node()) {
      std::set<std::string> lost = GivenToCall(node, names_);
      std::erase_if(lost, [&](const std::string& name) { return known.contains(name); });
      if (lost.empty()) continue;
      for (const std::string& input : node.input()) {
        if (found.Has(input)) found.merged[input].insert(lost.begin(), lost.end());
      }
    }
  }

  void FindMissing(Parameters& found) const {
    std::set<std::string> known;
    for (const TensorProto* t : uses_.initializers()) known.insert(t->name());
    for (const auto& [name, sources] : names_.folded_from) {
      known.insert(sources.begin(), sources.end());
    }
    for (const auto& [name, aliases] : found.aliases) known.insert(aliases.begin(), aliases.end());
    FindMerged(known, found);
    for (const auto& [name, merged] : found.merged) known.insert(merged.begin(), merged.end());
    std::ranges::copy_if(names_.parameters, std::back_inserter(found.missing),
                         [&](const std::string& name) { return !known.contains(name); });
  }

  void FindCopies(const std::vector<std::string>& params, Parameters& found) {
    std::map<std::string, const TensorProto*> tensors;
    for (const TensorProto* t : uses_.initializers()) tensors[t->name()] = t;
    std::map<std::string, std::string> first;  // by the parameter that was folded
    for (const std::string& name : params) {
      auto folded = names_.folded_from.find(name);
      if (folded == names_.folded_from.end() || folded->second.size() != 1) continue;
      auto [it, is_new] = first.try_emplace(folded->second[0], name);
      if (!is_new && SameData(*tensors[it->second], *tensors[name]))
        found.copies[name] = it->second;
    }
  }

  bool SameData(const TensorProto& a, const TensorProto& b) {
    const TensorType type = reader_.Type(a), other = reader_.Type(b);
    if (!type.SameTensor(other)) return false;
    const auto first = reader_.Source(a, RawOf(a)), second = reader_.Source(b, RawOf(b));
    return HoldsOfPieces(type.shape, [&](const Shape& offset, const Shape& size) {
      const HostTensor x = ReadPiece(*first, type.dtype, offset, size);
      const HostTensor y = ReadPiece(*second, type.dtype, offset, size);
      return std::equal(x.raw(), x.raw() + x.bytes(), y.raw());
    });
  }

  bool IsParameter(const TensorProto& t) {
    auto held = HeldAs(t.data_type());
    if (!held || !IsFloat(*held) || reader_.Type(t).num_elements() == 0) return false;
    if (names_.is_parameter.contains(t.name())) return true;
    if (names_.is_buffer.contains(t.name())) return false;
    if (names_.folded_from.contains(t.name()) && !names_.parameters.empty()) {
      std::set<std::string> visited;
      return IsFoldedFromParameter(t.name(), visited);
    }
    if (!IsCandidate(t) || IsConstantOfFx(t.name())) return false;
    auto kind = [&] { return KindOf(t); };
    return Evidence(t, uses_, kind).found();
  }

  bool IsFoldedFromParameter(const std::string& tensor, std::set<std::string>& visited) const {
    if (names_.is_parameter.contains(tensor)) return true;
    auto folded = names_.folded_from.find(tensor);
    if (folded == names_.folded_from.end() || !visited.insert(tensor).second) return false;
    return std::any_of(folded->second.begin(), folded->second.end(), [&](const std::string& name) {
      return IsFoldedFromParameter(name, visited);
    });
  }

  // A single number, where nothing says what the module trains. TorchScript writes the module's
  // constants as Constant nodes, as initializers its tensors ("h.0.scale", "logit_scale") and what
  // it folded of them ("onnx::Mul_7").
  bool MayBeTrainedNumber(const TensorProto& t) {
    auto held = HeldAs(t.data_type());
    if (!names_.parameters.empty() || !held || !IsFloat(*held)) return false;
    if (model_.proto.producer_name() == "pytorch") {
      if (t.name().starts_with('/') || reader_.Type(t).num_elements() != 1) return false;
      return Evidence(t, uses_, [&] { return KindOf(t); }).found();
    }
    if (t.dims_size() > 0 || t.name().find_first_of(".:") == std::string::npos) return false;
    return std::any_of(uses_.Of(t.name()).begin(), uses_.Of(t.name()).end(), [](const Use& use) {
      return use.node != nullptr && kScale.contains(use.node->op_type());
    });
  }

  Kind KindOf(const TensorProto& t) {
    auto [it, is_new] = kinds_.try_emplace(t.name(), Kind::kOther);
    if (is_new) it->second = Classify(reader_.Type(t), *reader_.Source(t, RawOf(t)));
    return it->second;
  }

  const Bytes* RawOf(const TensorProto& t) const {
    auto raw = raw_.find(&t);
    return raw == raw_.end() ? nullptr : raw->second;
  }

  const LoadedModel& model_;
  const ModuleNames& names_;
  TensorReader& reader_;
  Uses uses_;
  std::map<const TensorProto*, const Bytes*> raw_;  // of the tensors that have it in the file
  std::map<std::string, Kind> kinds_;
};

}  // namespace

Parameters FindParameters(const LoadedModel& model, const ModuleNames& names,
                          TensorReader& reader) {
  return Finder(model, names, reader).Run();
}

}  // namespace shardc::onnx_import
