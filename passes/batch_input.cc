#include "passes/batch_input.h"

#include <map>
#include <utility>

namespace shardc {

Diagnostic BadCount(const MicrobatchSpec& spec, std::string what, std::string fix) {
  return Diagnostic("E2110", ExitCode::kBadSpec, spec.where, std::move(what), std::move(fix));
}

Value* BatchInput(const Graph& graph, const MicrobatchSpec& spec) {
  std::map<int64_t, int> count;
  Value* best = nullptr;
  auto may_be = [](const Value& v) { return v.type.rank() > 0 && !v.users.empty(); };
  for (const auto& input : graph.inputs()) {
    if (may_be(*input)) ++count[input->type.shape[0]];
  }
  for (const auto& input : graph.inputs()) {
    if (!may_be(*input)) continue;
    if (!best || count[input->type.shape[0]] > count[best->type.shape[0]]) best = input.get();
  }
  if (!best) throw BadCount(spec, "no input of the model has a batch dim", "leave it out");
  return best;
}

}  // namespace shardc
