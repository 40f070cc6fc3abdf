#include "passes/note_whole.h"

#include <algorithm>

#include "ir/diagnostic.h"
#include "ir/op_def.h"
#include "passes/first_of.h"

namespace shardc {
namespace {

constexpr double kLeastShare = 0.05;  // of all weights, in bytes

// Those over which weights are cut because of what they are: the ranks of one that cuts inputs,
// too, share the weights.
AxisList AxesOfWeights(const Graph& graph, const std::vector<Op*>& params) {
  AxisList axes;
  for (int axis = 0; axis < graph.mesh.num_axes(); ++axis) {
    auto uses = [&](const Value& v) { return v.type.sharding.Uses(axis); };
    if (graph.mesh.axis_size(axis) > 1 &&
        std::ranges::any_of(params, [&](const Op* p) { return uses(*p->result()); }) &&
        std::ranges::none_of(graph.inputs(), [&](const auto& v) { return uses(*v); })) {
      axes.push_back(axis);
    }
  }
  return axes;
}

bool IsMatrix(const TensorType& type) {
  return std::ranges::count_if(type.shape, [](int64_t n) { return n > 1; }) > 1;
}

}  // namespace

void NoteWhole(Graph& graph) {
  const std::vector<Op*> params = graph.Params();
  const AxisList axes = AxesOfWeights(graph, params);
  if (axes.empty()) return;
  Strings whole;
  double all_bytes = 0, whole_bytes = 0;
  for (const Op* param : params) {
    const TensorType& type = param->out();
    all_bytes += static_cast<double>(type.bytes());
    if (!IsMatrix(type) || param->attrs.Has("role") || param->attrs.Has("whole") ||
        std::ranges::any_of(axes, [&](int axis) { return type.sharding.Uses(axis); })) {
      continue;
    }
    whole.push_back(StrCat("'", param->attrs.String("name"), "'"));
    whole_bytes += static_cast<double>(type.bytes());
  }
  if (whole_bytes == 0 || whole_bytes < kLeastShare * all_bytes) return;
  const bool one = whole.size() == 1;
  graph.notes.push_back(StrCat("no role is known of ", FirstOf(whole), ", ",
                               static_cast<int>(100 * whole_bytes / all_bytes),
                               "% of the weights: ", one ? "it is" : "they are",
                               " whole on each rank of ", Join(graph.mesh.Names(axes), " and "),
                               " (a rule by name can cut ", one ? "it" : "them", ")"));
}

}  // namespace shardc
