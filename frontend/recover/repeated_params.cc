// A lookup with positions known at export is folded into its rows, with the batch in them; what is
// expanded for the examples into a row for each; the weight of a linear layer into one for each,
// where it was written as a batched product.
// Trained as they are, each copy would go its own way.
#include <algorithm>

#include "frontend/recover/patterns.h"
#include "ir/op_def.h"

namespace shardc::recover {
namespace {

// Whether every use takes the parameter's copies apart again: it is added to values of its own
// shape, or stands beside such in a concat. `kept`: dims along which equal rows are rows.
bool IsSpread(const Graph& graph, const Op* param, std::vector<bool>& kept) {
  const Value* v = param->result();
  kept.assign(v->type.shape.size(), false);
  return !v->users.empty() && !graph.IsOutput(v) &&
         std::all_of(v->users.begin(), v->users.end(), [&](const Op* user) {
           if (user->name() == "add") {
             return user->operands[0] != user->operands[1] &&
                    user->in(0).shape == user->in(1).shape;
           }
           if (user->name() != "concat") return false;
           kept[AxisOf(user->attrs, v->type.rank())] = true;
           return true;
         });
}

// Whether every use combines the rows along the first dim with those of values of its own rank.
bool IsRowOfEach(const Graph& graph, const Op* param, std::vector<bool>& kept) {
  const Value* v = param->result();
  const int rank = v->type.rank();
  kept.assign(rank, true);
  kept[0] = false;
  return rank > 1 && !v->users.empty() && !graph.IsOutput(v) &&
         std::ranges::all_of(v->users, [&](const Op* user) {
           if (!OneOf(user->name(), {"add", "sub", "mul", "div"})) return false;
           const Value* other = user->operands[user->operands[0] == v ? 1 : 0];
           return other->type.rank() == rank && other->type.shape[0] == v->type.shape[0];
         });
}

// Whether every use multiplies each of a batch with a matrix of the parameter.
bool IsMatrixOfEach(const Graph& graph, const Op* param, std::vector<bool>& kept) {
  const Value* v = param->result();
  const Shape& shape = v->type.shape;
  kept.assign(shape.size(), false);
  kept.rbegin()[0] = kept.rbegin()[1] = true;
  return !v->users.empty() && !graph.IsOutput(v) &&
         std::ranges::all_of(v->users, [&](const Op* user) {
           return MultipliesBy(user, v) && user->in(0).rank() == v->type.rank() &&
                  std::equal(shape.begin(), shape.end() - 2, user->in(0).shape.begin());
         });
}

// The dims along which all elements are the same bit for bit become 1.
Shape WithoutRepeats(const HostTensor& data, const std::vector<bool>& kept) {
  const Shape& shape = data.shape();
  Shape compact = shape;
  int64_t inner = DTypeSize(data.dtype());
  for (int d = static_cast<int>(shape.size()) - 1; d >= 0; --d) {
    int64_t n = shape[d], outer = data.bytes() / (inner * n);
    bool same = true;
    for (int64_t i = 0; i < outer && same; ++i) {
      const std::byte* first = data.raw() + i * n * inner;
      for (int64_t j = 1; j < n && same; ++j) {
        same = std::equal(first, first + inner, first + j * inner);
      }
    }
    if (same && !kept[d]) compact[d] = 1;
    inner *= n;
  }
  return compact;
}

// Puts one of each that are equal in the parameter's place; false where none are.
bool KeepOneOfEach(Graph& graph, Op* param, const std::vector<bool>& kept) {
  const TensorType type = param->out();
  const std::string name = param->attrs.String("name");
  auto source = graph.sources.find(name);
  if (source == graph.sources.end()) return false;
  HostTensor data(type.dtype, type.shape);
  source->second->Read(Shape(type.rank(), 0), type.shape, data.raw());
  Shape shape = WithoutRepeats(data, kept);
  // A fill says nothing about where the values came from, and the last dim is the features'.
  if (shape == type.shape || shape.back() != type.shape.back()) return false;
  Builder builder(graph, graph.Next(param), *param);
  Attributes more = param->attrs;
  more.Erase("name");
  Value* rows = builder.Param(name, type.dtype, shape, more);
  graph.ReplaceAllUses(param->result(), builder.BroadcastTo(rows, type.shape));
  graph.Erase(param);
  return true;
}

}  // namespace

bool DropRepeatedRows(Graph& graph) {
  bool changed = false;
  for (Op* param : graph.Params()) {
    const std::string name = param->attrs.String("name");
    std::vector<bool> kept;
    if (param->out().rank() < 3 || param->out().num_elements() == 0 ||
        !IsSpread(graph, param, kept) || !KeepOneOfEach(graph, param, kept)) {
      continue;
    }
    graph.notes.push_back(
        StrCat("parameter '", name, "' holds equal rows: trained as one of each"));
    changed = true;
  }
  return changed;
}

void DropExpanded(Graph& graph, const std::set<std::string>& expanded) {
  for (Op* param : graph.Params()) {
    std::vector<bool> kept;
    const int rank = param->out().rank();
    if (!expanded.contains(param->attrs.String("name")) || param->out().num_elements() == 0)
      continue;
    if (rank >= 3 && IsSpread(graph, param, kept))
      continue;  // for DropRepeatedRows, which finds more
    const bool matrix = rank >= 3 && IsMatrixOfEach(graph, param, kept);
    if (matrix || IsRowOfEach(graph, param, kept)) KeepOneOfEach(graph, param, kept);
  }
}

}  // namespace shardc::recover
