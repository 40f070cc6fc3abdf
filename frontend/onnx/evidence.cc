#include "frontend/onnx/evidence.h"

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "frontend/onnx/constant_weights.h"
#include "frontend/onnx/initializers.h"
#include "frontend/onnx/load_model.h"
#include "frontend/onnx/scale_tables.h"

namespace shardc::onnx_import {
namespace {

using onnx::NodeProto;
using onnx::TensorProto;
using Ops = std::set<std::string_view>;

// Their result is input 0 (of Concat and Where any input) in another arrangement or scale.
const Ops kPassOn = {"Identity",
                     "Transpose",
                     "Reshape",
                     "Unsqueeze",
                     "Squeeze",
                     "Flatten",
                     "Expand",
                     "Tile",
                     "Cast",
                     "CastLike",
                     "Slice",
                     "Split",
                     "Pad",
                     "Dropout",
                     "Neg",
                     "Abs",
                     "Exp",
                     "Log",
                     "Sqrt",
                     "Pow",
                     "Clip",
                     "Tanh",
                     "Sigmoid",
                     "Softplus",
                     "Concat",
                     "Where",
                     "Reciprocal",
                     "CumSum",
                     "Trilu",
                     "QuantizeLinear",
                     "DequantizeLinear"};
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
                    "Mod",
                    "ConstantOfShape",
                    "TopK",
                    "Floor",
                    "Ceil",
                    "Round",
                    "Sign"};

// Their results are no numbers with a gradient; nor are the positions that TopK gives.
const Ops kDecide = {"ArgMax", "ArgMin",         "Equal", "Less",  "LessOrEqual", "Greater",
                     "IsNaN",  "GreaterOrEqual", "Size",  "Shape", "IsInf"};
constexpr size_t kMaxTables = 64;  // values on the way from a table to what it is divided by
constexpr size_t kMaxChoice = 64;  // values on the way from a score to a choice

// Scales, statistics, labels and their weights, tables of cos and sin, positions and masks.
bool IsNotTrained(std::string_view op, int input) {
  struct Inputs {
    int first, last;
  };
  static const std::map<std::string_view, Inputs> kInputs = {{"CastLike", {1, 1}},
                                                             {"Resize", {1, 3}},
                                                             {"Upsample", {1, 1}},
                                                             {"Where", {0, 0}},
                                                             {"BatchNormalization", {3, 4}},
                                                             {"DequantizeLinear", {1, 2}},
                                                             {"QuantizeLinear", {1, 2}},
                                                             {"SoftmaxCrossEntropyLoss", {1, 2}},
                                                             {"NegativeLogLikelihoodLoss", {1, 2}},
                                                             {"RotaryEmbedding", {1, 3}},
                                                             {"GroupQueryAttention", {7, 8}},
                                                             {"Attention", {3, 3}}};
  const auto inputs = kInputs.find(op);
  return inputs != kInputs.end() && inputs->second.first <= input && input <= inputs->second.last;
}

// Integers and flags have no gradient.
bool IsCastToIntegers(const NodeProto& node) {
  return node.op_type() == "Cast" && std::ranges::any_of(node.attribute(), [](const auto& attr) {
           const auto held = HeldAs(static_cast<int>(attr.i()));
           return attr.name() == "to" && held && !IsFloat(*held);
         });
}

// Whether the input is added to the scores of an attention: of ONNX, or one that ONNX Runtime
// fused.
bool IsAddedToScores(const NodeProto& node, int input) {
  const std::string& op = node.op_type();
  if (op == "GroupQueryAttention") return input == 10;
  if (op == "Attention" && NormalDomain(node.domain()).empty()) return input == 3;
  return (op == "Attention" || op == "MultiHeadAttention") && input == 5;
}

// A Constant node's; of other values that is not known here.
bool IsOneNumber(const NodeProto* constant) {
  return constant != nullptr && constant->op_type() == "Constant" &&
         std::ranges::any_of(constant->attribute(), [](const auto& attr) {
           return attr.name() == "value_int" ||
                  (attr.name() == "value" &&
                   std::ranges::all_of(attr.t().dims(), [](int64_t d) { return d == 1; }));
         });
}

// Follows one tensor to the places where a network computes with it.
class Evidence {
 public:
  Evidence(const TensorProto& tensor, const Uses& uses, const std::function<TableKind()>& kind)
      : uses_(uses), kind_(kind), name_(tensor.name()), rank_(tensor.dims_size()) {
    dims_ = LargerDims(tensor);
    vector_ = dims_ <= 1;
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
  bool reparametrized() const { return reparametrized_; }

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
    return std::ranges::any_of(node.input(), [&](const std::string& name) {
      return name != value && uses_.IsActivation(name);
    });
  }

  bool MeetsComputed(const NodeProto& node, const std::string& value) const {
    return std::ranges::any_of(node.input(), [&](const std::string& name) {
      return name != value && uses_.IsComputed(name);
    });
  }

  bool IsMask() const { return kind_() == TableKind::kMask; }
  // As exporters store ALiBi, under no name of the module's. A vector may be trained from a ramp.
  bool IsDistances() const { return !vector_ && kind_() == TableKind::kDistances; }

  // Of ALiBi, where the model multiplies them with the distances.
  bool IsSlopes() const { return scales_table_ && kind_() == TableKind::kSlopes; }

  // One element of a table, looked up by numbers of the file.
  bool IsElement(const std::string& value) const {
    int64_t picked = 0;
    const NodeProto* maker = uses_.MakerOf(value);
    for (; maker != nullptr; maker = uses_.MakerOf(InputOf(*maker, 0))) {
      const bool picks =
          maker->op_type() == "Gather" && IsOneNumber(uses_.MakerOf(InputOf(*maker, 1)));
      if (!picks && maker->op_type() != "Unsqueeze" && maker->op_type() != "Cast") return false;
      picked += picks;
    }
    return picked > 0 && picked >= rank_;
  }

  // The tensors of the file of which the value is computed.
  std::set<std::string> TablesOf(const std::string& value) const {
    std::vector<std::string> open = {value};
    std::set<std::string> seen = {value}, tables;
    for (size_t i = 0; i < open.size() && open.size() < kMaxTables; ++i) {
      const NodeProto* maker = uses_.MakerOf(open[i]);
      if (maker == nullptr) {
        if (!open[i].empty()) tables.insert(open[i]);
        continue;
      }
      for (const std::string& input : maker->input()) {
        if (seen.insert(input).second) open.push_back(input);
      }
    }
    return tables;
  }

  // Whether it has a part only in what a table is divided by, and that is computed from this table:
  // its norm, as estimated by vectors that power iterations found (spectral normalisation).
  bool IsOfNorm(const NodeProto& node, const std::string& value) const {
    if (node.op_type() != "Div" || InputOf(node, 1) != value) return false;
    const std::set<std::string> of = TablesOf(InputOf(node, 0)), by = TablesOf(value);
    return !of.contains(name_) && std::ranges::any_of(of, [&](const std::string& table) {
      return by.contains(table) && uses_.DependsOnTables(table);
    });
  }

  // What a tensor is filled with, or begins as; not a vector, which may be a new token.
  bool IsFill() const { return !vector_ && kind_() == TableKind::kZeros; }

  // What stands beside what is computed (memories of keys, a token of its own) is no table.
  bool IsOfContent() const { return rank_ > 1 && kind_() == TableKind::kOther; }

  // A mask of a batch without padding is all zeros, like a new bias, or ones, of which the zeros
  // are computed; but added to scores, which may be masked once more.
  bool IsEmptyMask(const NodeProto& sum) const {
    if (rank_ < 3 || (kind_() != TableKind::kZeros && kind_() != TableKind::kOnes)) return false;
    std::vector<std::string> sums = {OutputOf(sum)};
    for (size_t i = 0; i < sums.size(); ++i) {
      const std::vector<Use>& users = uses_.Of(sums[i]);
      if (users.empty() || sums.size() > kMaxChoice) return false;
      for (const Use& use : users) {
        const std::string op = use.node == nullptr ? "" : use.node->op_type();
        if (op == "Softmax") continue;
        const bool masks = op == "Reshape" || op == "Add" || (op == "Where" && use.input > 0);
        if (!masks) return false;
        sums.push_back(OutputOf(*use.node));
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

  // Whether the use shows a parameter; if it does not, what comes of it may be followed.
  bool Decides(const Use& use, const std::string& value, bool row) {
    const NodeProto& node = *use.node;
    const std::string& op = node.op_type();
    if (IsAddedToScores(node, use.input)) return kind_() == TableKind::kOther;
    if (kNever.contains(op) || IsNotTrained(op, use.input) || IsCastToIntegers(node)) return false;
    if (kLookUp.contains(op)) return use.input == 0 && FollowRows(node, row);
    powered_ |= op == "Pow" && use.input == 0 && !IsOneNumber(uses_.MakerOf(InputOf(node, 1)));
    if (kReduce.contains(op) || op == "Pow") {
      return (use.input == 0 && row) || FollowOutputs(node, row);
    }
    if (op == "Max" || op == "Min")
      return !MeetsActivation(node, value) && FollowOutputs(node, row);
    if (op == "Where" && use.input > 0) return ChoiceDecides(node, value, row);
    if (op.starts_with("Scatter") && use.input == 0 && IsFill()) return false;
    if (op == "Concat" && MeetsActivation(node, value) && IsOfContent()) return true;
    // A mix of layers has weights that are shares.
    reparametrized_ |=
        kReparametrize.contains(op) || (op == "Softmax" && !uses_.DependsOnData(value));
    // Of ones it is a mask, or positions.
    if ((op == "Trilu" || op == "CumSum") && kind_() == TableKind::kOnes) return false;
    if (kPassOn.contains(op) || kPassOnInSequences.contains(op)) return FollowOutputs(node, row);
    if (kProduct.contains(op)) {
      if (MeetsComputed(node, value)) return true;
      in_product_ = true;
      return FollowOutputs(node, row);
    }
    if (kSum.contains(op)) return SumDecides(node, value, row);
    if (kScale.contains(op)) return ScaleDecides(node, value, row);
    return true;
  }

  // An element that is always the same one scales as the vector would.
  bool FollowRows(const NodeProto& node, bool row) {
    vector_ &= node.input_size() > 1 && IsOneNumber(uses_.MakerOf(InputOf(node, 1)));
    row |= node.input_size() > 1 && uses_.DependsOnData(InputOf(node, 1));
    return FollowOutputs(node, row);
  }

  bool ChoiceDecides(const NodeProto& node, const std::string& value, bool row) {
    if (uses_.DependsOnData(InputOf(node, 0)) && IsFill()) return false;
    if (MeetsActivation(node, value)) return !IsMask() && !IsFill();
    return FollowOutputs(node, row);
  }

  bool SumDecides(const NodeProto& node, const std::string& value, bool row) {
    if (!MeetsActivation(node, value)) return FollowOutputs(node, row);
    return !IsMask() && !IsDistances() && !IsSlopes() && !IsEmptyMask(node) &&
           !OnlyChooses(OutputOf(node));
  }

  bool ScaleDecides(const NodeProto& node, const std::string& value, bool row) {
    if (MeetsActivation(node, value)) {
      if (IsMask()) return false;
      // To the power of each position it may be the scale of a rotation (xPos).
      if (powered_ && IsOfRotation(node, value, uses_)) return false;
      if (vector_ || reparametrized_ || IsElement(value)) return true;
      // Numbers that are looked up may be a schedule (of diffusion, [steps] or [steps, 1, 1]) or
      // weights of classes.
      return row ? (rank_ == 2 || dims_ > 1) && !IsDistances() && !IsOfRotation(node, value, uses_)
                 : ScalesAsWeight(node, value, dims_, uses_);
    }
    // Of weights that were pruned, or that see only some of the inputs.
    if (ScalesTableOfItsDims(node, value, uses_) && IsMask()) return false;
    if (in_product_ && IsOfNorm(node, value)) return false;
    scales_table_ = true;
    return FollowOutputs(node, row);
  }

  const Uses& uses_;
  const std::function<TableKind()>& kind_;
  std::string name_;
  int rank_;
  int64_t dims_ = 0;     // without those of size 1
  bool vector_ = false;  // one dim at most is larger than 1, and no rows were picked
  bool reparametrized_ = false;
  bool powered_ = false;       // its numbers are bases of several powers
  bool in_product_ = false;    // with a table
  bool scales_table_ = false;  // or a number
  bool found_ = false;
  std::vector<Step> open_;
  std::set<std::string> visited_;
};

}  // namespace

bool IsTrained(const TensorProto& tensor, const Uses& uses,
               const std::function<TableKind()>& kind) {
  return Evidence(tensor, uses, kind).found();
}

bool IsTrainedScale(const TensorProto& tensor, const Uses& uses) {
  const std::function<TableKind()> kind = [] { return TableKind::kOther; };
  const Evidence evidence(tensor, uses, kind);
  return evidence.found() && evidence.reparametrized();
}

}  // namespace shardc::onnx_import
