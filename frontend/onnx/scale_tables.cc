#include "frontend/onnx/scale_tables.h"

#include <algorithm>
#include <iterator>
#include <set>
#include <string_view>
#include <vector>

namespace shardc::onnx_import {
namespace {

using onnx::NodeProto;
using Ops = std::set<std::string_view>;

constexpr int kDeepest = 8;

const Ops kArrange = {"Cast", "Expand", "Identity", "Reshape", "Squeeze", "Transpose", "Unsqueeze"};
const Ops kKeepsDims = {"Cast", "Identity", "Squeeze", "Unsqueeze"};
const Ops kNorms = {"BatchNormalization",          "GroupNormalization", "InstanceNormalization",
                    "LayerNormalization",          "LpNormalization",    "RMSNormalization",
                    "SimplifiedLayerNormalization"};
const Ops kSums = {"Add", "Sub", "Sum"};
const Ops kReduce = {"ReduceL2", "ReduceMean", "ReduceSum", "ReduceSumSquare"};
// Between the statistic of a norm and what is divided by it.
const Ops kOfStatistic = {"Add", "Cast",    "Clip",       "Div",  "Expand", "Max",      "Mul",
                          "Pow", "Reshape", "Reciprocal", "Sqrt", "Sum",    "Unsqueeze"};

class Scales {
 public:
  explicit Scales(const Uses& uses) : uses_(uses) {}

  bool IsNormalised(const std::string& value, int depth = 0) const {
    const NodeProto* node = uses_.MakerOf(value);
    if (node == nullptr || depth > kDeepest) return false;
    const std::string& op = node->op_type();
    if (kNorms.contains(op)) return true;
    if (kArrange.contains(op)) return IsNormalised(InputOf(*node, 0), depth + 1);
    if (op == "Div" && IsStatistic(InputOf(*node, 1), 0)) return true;
    if (op != "Mul" && op != "Div") return false;
    for (int i = 0; i < 2; ++i) {
      const std::string& other = InputOf(*node, 1 - i);
      if (op == "Mul" && IsStatistic(other, 0)) return true;
      if (!uses_.IsActivation(other) && IsNormalised(InputOf(*node, i), depth + 1)) return true;
    }
    return false;
  }

  bool IsReduced(const std::string& value) const {
    return std::ranges::any_of(uses_.Of(value), [](const Use& use) {
      return use.node != nullptr && use.node->op_type() == "ReduceSum" && use.input == 0;
    });
  }

  bool IsSumReduced(const std::string& value, int depth = 0) const {
    return std::ranges::any_of(uses_.Of(value), [&](const Use& use) {
      if (use.node == nullptr || depth > kDeepest) return false;
      const std::string& op = use.node->op_type();
      if (op == "ReduceSum") return use.input == 0;
      const bool scales = op == "Mul" && !uses_.IsActivation(InputOf(*use.node, 1 - use.input));
      return (scales || kSums.contains(op)) && IsSumReduced(OutputOf(*use.node), depth + 1);
    });
  }

  // A table of the same dims, to every product that comes of it, also after a number.
  bool IsAddedTo(const std::string& value, const std::string& table, int depth = 0) const {
    const std::vector<Use>& of = uses_.Of(value);
    return !of.empty() && depth <= kDeepest && std::ranges::all_of(of, [&](const Use& use) {
      if (use.node == nullptr || use.node->input_size() != 2) return false;
      const std::string& other = InputOf(*use.node, 1 - use.input);
      if (use.node->op_type() == "Mul" && uses_.MakerOf(other) != nullptr &&
          uses_.MakerOf(other)->op_type() == "Constant")
        return IsAddedTo(OutputOf(*use.node), table, depth + 1);
      return use.node->op_type() == "Add" && HasDimsOf(other, table);
    });
  }

  bool IsSumOfProducts(const std::string& value, int depth = 0) const {
    const NodeProto* node = uses_.MakerOf(value);
    if (node == nullptr || depth > kDeepest) return false;
    if (kArrange.contains(node->op_type())) return IsSumOfProducts(InputOf(*node, 0), depth + 1);
    return kSums.contains(node->op_type()) && node->input_size() > 1 &&
           std::ranges::all_of(node->input(), [&](const auto& term) { return IsProduct(term, 0); });
  }

  bool MeetsAnotherProduct(const std::string& value, int depth = 0) const {
    return std::ranges::any_of(uses_.Of(value), [&](const Use& use) {
      if (use.node == nullptr || depth > kDeepest) return false;
      const std::string& op = use.node->op_type();
      if (kArrange.contains(op) || op == "Neg")
        return MeetsAnotherProduct(OutputOf(*use.node), depth + 1);
      return kSums.contains(op) && std::ranges::any_of(use.node->input(), [&](const auto& other) {
               return other != value && IsProduct(other, 0);
             });
    });
  }

  // But for those of size 1.
  bool HasDimsOf(const std::string& other, const std::string& table) const {
    const std::vector<int64_t> dims = LargerDims(table);
    return !dims.empty() && LargerDims(other) == dims;
  }

 private:
  // Of a tensor of the file, to which nodes may have given dims of size 1; empty for other values.
  std::vector<int64_t> LargerDims(std::string name) const {
    for (int i = 0; i < kDeepest; ++i) {
      const NodeProto* maker = uses_.MakerOf(name);
      if (maker == nullptr || !kKeepsDims.contains(maker->op_type())) break;
      name = InputOf(*maker, 0);
    }
    std::vector<int64_t> dims;
    for (const onnx::TensorProto* t : uses_.initializers()) {
      if (t->name() != name) continue;
      std::ranges::copy_if(t->dims(), std::back_inserter(dims), [](int64_t d) { return d > 1; });
    }
    return dims;
  }

  bool IsProduct(const std::string& value, int depth) const {
    const NodeProto* node = uses_.MakerOf(value);
    if (node == nullptr || depth > kDeepest) return false;
    const std::string& op = node->op_type();
    if (kArrange.contains(op) || op == "Neg") return IsProduct(InputOf(*node, 0), depth + 1);
    return op == "Mul" || op == "Div";
  }

  bool IsStatistic(const std::string& value, int depth) const {
    const NodeProto* node = uses_.IsActivation(value) ? uses_.MakerOf(value) : nullptr;
    if (node == nullptr || depth > kDeepest) return false;
    if (kReduce.contains(node->op_type())) return true;
    return kOfStatistic.contains(node->op_type()) &&
           std::ranges::any_of(node->input(), [&](const std::string& input) {
             return IsStatistic(input, depth + 1);
           });
  }

  const Uses& uses_;
};

}  // namespace

bool ScalesAsWeight(const NodeProto& scale, const std::string& table, int64_t dims,
                    const Uses& uses) {
  const Scales scales(uses);
  const std::string& result = OutputOf(scale);
  if (scale.input_size() != 2 || InputOf(scale, 0) == InputOf(scale, 1)) return false;
  if (scales.IsReduced(result) || scales.IsSumReduced(result))
    return scale.op_type() == "Mul" && dims == 2;
  if (scales.MeetsAnotherProduct(result)) return false;
  if (scale.op_type() == "Mul" && scales.IsAddedTo(result, table)) return true;
  return scales.IsNormalised(InputOf(scale, InputOf(scale, 0) == table ? 1 : 0));
}

bool IsOfRotation(const NodeProto& scale, const std::string& factor, const Uses& uses) {
  const Scales scales(uses);
  const std::string& other = InputOf(scale, InputOf(scale, 0) == factor ? 1 : 0);
  return scales.MeetsAnotherProduct(OutputOf(scale)) || scales.IsSumOfProducts(other);
}

bool ScalesTableOfItsDims(const NodeProto& scale, const std::string& factor, const Uses& uses) {
  return scale.op_type() == "Mul" &&
         Scales(uses).HasDimsOf(InputOf(scale, InputOf(scale, 0) == factor ? 1 : 0), factor);
}

}  // namespace shardc::onnx_import
