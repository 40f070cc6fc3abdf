#include "passes/narrow_params.h"

#include <algorithm>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "ir/converted_source.h"

namespace shardc {
namespace {

// What it may be: nothing where it must stay as it is.
std::optional<DType> NarrowTypeOf(const Graph& graph, const Op& param) {
  const Value* v = param.result();
  if (!IsFloat(v->type.dtype) || v->users.empty() || graph.IsOutput(v)) return std::nullopt;
  const auto casts_to = [](const Op* user) {
    return user->name() == "cast" ? std::optional(user->out().dtype) : std::nullopt;
  };
  const std::optional<DType> type = casts_to(v->users[0]);
  if (!type || !IsFloat(*type) || DTypeSize(*type) >= DTypeSize(v->type.dtype)) {
    return std::nullopt;
  }
  const auto alike = [&](const Op* user) { return casts_to(user) == type; };
  return std::ranges::all_of(v->users, alike) ? type : std::nullopt;
}

std::string WholeOf(const Op& param) {
  return param.attrs.String("piece_of", param.attrs.String("name"));
}

void Narrow(Graph& graph, const Op& param, DType type) {
  Value* v = param.result();
  const auto source = graph.sources.find(param.attrs.String("name"));
  if (source != graph.sources.end()) {
    source->second = std::make_shared<ConvertedSource>(source->second, v->type.dtype, type);
  }
  v->type.dtype = type;
  for (Op* cast : std::vector<Op*>(v->users)) {
    graph.ReplaceAllUses(cast->result(), v);
    graph.Erase(cast);
  }
}

}  // namespace

bool CastsParam(const Op& op) {
  const Op* from = op.name() == "cast" ? op.operands[0]->producer : nullptr;
  return from && from->name() == "param";
}

void NarrowParams(Graph& graph) {
  std::set<std::string> updated;
  for (const auto& op : graph.ops()) {
    if (op->name() == "update") updated.insert(op->attrs.String("name"));
  }
  std::map<std::string, std::optional<DType>> types;  // by the tensor that it is, or is a piece of
  for (const Op* param : graph.Params()) {
    std::optional<DType> type = NarrowTypeOf(graph, *param);
    if (updated.contains(param->attrs.String("name"))) type.reset();
    const auto [it, first] = types.try_emplace(WholeOf(*param), type);
    if (!first && it->second != type) it->second.reset();
  }
  for (Op* param : graph.Params()) {
    const std::optional<DType> type = types.at(WholeOf(*param));
    if (type) Narrow(graph, *param, *type);
  }
}

}  // namespace shardc
