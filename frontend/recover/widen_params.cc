// Files keep weights in half precision for models that compute in a wider type. Trained in halves
// they would lose updates much smaller than themselves, and every pattern would meet their casts.
#include <algorithm>
#include <map>
#include <utility>

#include "frontend/recover/patterns.h"
#include "ir/converted_source.h"

namespace shardc::recover {
namespace {

// What reads a value of a parameter: ops that only arrange its elements, and then casts to one
// wider type.
struct Readers {
  std::vector<Op*> arrange, casts;
};

bool AllWiden(const Graph& graph, const Value* v, Readers& readers) {
  if (graph.IsOutput(v)) return false;
  return std::all_of(v->users.begin(), v->users.end(), [&](Op* user) {
    if (user->operands[0] != v) return false;  // it is an index
    if (user->name() == "cast") {
      const DType to = user->out().dtype;
      readers.casts.push_back(user);
      return IsFloat(to) && !IsHalf(to) && to == readers.casts[0]->out().dtype;
    }
    if (!Arranges(user)) return false;
    readers.arrange.push_back(user);
    return std::all_of(user->results.begin(), user->results.end(),
                       [&](const Value* r) { return AllWiden(graph, r, readers); });
  });
}

}  // namespace

bool WidenParams(Graph& graph) {
  std::map<std::pair<DType, DType>, int64_t> widened;
  for (Op* param : graph.Params()) {
    Readers readers;
    if (!IsHalf(param->out().dtype) || !AllWiden(graph, param->result(), readers) ||
        readers.casts.empty())
      continue;
    const DType from = param->out().dtype, to = readers.casts[0]->out().dtype;
    param->result()->type.dtype = to;
    for (Op* op : readers.arrange) {
      for (Value* r : op->results) r->type.dtype = to;
    }
    for (Op* cast : readers.casts) graph.ReplaceAllUses(cast->result(), cast->operands[0]);
    const std::string& name = param->attrs.String("name");
    if (auto source = graph.sources.find(name); source != graph.sources.end())
      source->second = std::make_shared<ConvertedSource>(source->second, from, to);
    ++widened[{from, to}];
  }
  if (widened.empty()) return false;
  graph.EraseDead();
  for (const auto& [types, count] : widened) {
    const auto [from, to] = types;
    graph.notes.push_back(StrCat(count, count == 1 ? " parameter is " : " parameters are ",
                                 DTypeName(from), " in the file and read in ", DTypeName(to),
                                 " alone: kept and trained in ", DTypeName(to)));
  }
  return true;
}

}  // namespace shardc::recover
