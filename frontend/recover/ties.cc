// Exporters fold the transpose of a tied embedding into a second tensor. Trained apart, the two
// drift.
#include <algorithm>
#include <cstring>

#include "frontend/recover/patterns.h"

namespace shardc::recover {
namespace {

const TensorSource* SourceOf(const Graph& graph, const Op* param) {
  auto it = graph.sources.find(param->attrs.String("name"));
  return it == graph.sources.end() ? nullptr : it->second.get();
}

// Whether table[i, j] == other[i, j] (transposed: other[j, i]) everywhere, bit for bit, and not all
// elements are one value: two tensors that a fill made alike are not tied.
bool SameData(const Graph& graph, const Op* table, const Op* other, bool transposed) {
  const TensorSource *a = SourceOf(graph, table), *b = SourceOf(graph, other);
  if (a == nullptr || b == nullptr) return false;
  const Shape& shape = table->out().shape;
  const int64_t rows = shape[0], columns = shape[1], size = DTypeSize(table->out().dtype);
  if (rows == 0 || columns == 0) return false;
  const int64_t block = std::clamp<int64_t>((int64_t{1} << 18) / columns, 1, rows);
  std::vector<char> x(block * columns * size), y(x.size()), first(size);
  bool varies = false;
  for (int64_t row = 0; row < rows; row += block) {
    int64_t count = std::min(block, rows - row);
    a->Read({row, 0}, {count, columns}, x.data());
    if (transposed) {
      b->Read({0, row}, {columns, count}, y.data());
    } else {
      b->Read({row, 0}, {count, columns}, y.data());
    }
    if (row == 0) std::copy_n(x.data(), size, first.data());
    for (int64_t i = 0; i < count; ++i) {
      for (int64_t j = 0; j < columns; ++j) {
        const char* p = x.data() + (i * columns + j) * size;
        const char* q = y.data() + (transposed ? j * count + i : i * columns + j) * size;
        if (std::memcmp(p, q, size) != 0) return false;
        varies = varies || std::memcmp(p, first.data(), size) != 0;
      }
    }
  }
  return varies;
}

bool IsTable(const Op* param) {
  return std::any_of(param->result()->users.begin(), param->result()->users.end(),
                     [&](const Op* user) {
                       bool lookup = user->name() == "embedding" ||
                                     (user->name() == "gather" && user->attrs.Int("axis", 0) == 0);
                       return lookup && user->operands[0] == param->result();
                     });
}

bool IsLinearWeight(const Op* param) {
  const std::vector<Op*>& users = param->result()->users;
  return !users.empty() && std::all_of(users.begin(), users.end(), [&](const Op* user) {
    return (user->name() == "matmul" || user->name() == "matmul_nt") &&
           user->operands[1] == param->result() && user->operands[0] != param->result();
  });
}

void Merge(Graph& graph, Op* table, Op* other, bool transposed) {
  Strings aliases;
  if (table->attrs.Has("aliases")) aliases = table->attrs.StringList("aliases");
  const std::string name = table->attrs.String("name"), other_name = other->attrs.String("name");
  aliases.push_back(other_name);
  if (other->attrs.Has("aliases")) {
    const Strings& more = other->attrs.StringList("aliases");
    aliases.insert(aliases.end(), more.begin(), more.end());
  }
  table->attrs.Set("aliases", std::move(aliases));
  if (transposed) {
    Strings across;
    if (table->attrs.Has("transposed_aliases")) {
      across = table->attrs.StringList("transposed_aliases");
    }
    across.push_back(other_name);
    table->attrs.Set("transposed_aliases", std::move(across));
  }
  graph.notes.push_back(StrCat("parameters '", name, "' and '", other_name, "' are one matrix",
                               transposed ? " (transposed)" : "", ": tied as '", name, "'"));
  // Users of the other one may stand before the table.
  graph.MoveBefore(table, graph.ops().front().get());
  Builder builder(graph, graph.Next(table));
  Value* value = table->result();
  if (transposed) value = builder.Transpose(value, {1, 0});
  graph.ReplaceAllUses(other->result(), value);
  graph.sources.erase(other_name);
  graph.Erase(other);
}

}  // namespace

void MergeTiedParams(Graph& graph) {
  std::vector<Op*> tables, weights;
  for (Op* param : graph.Params()) {
    if (param->out().rank() != 2) continue;
    if (IsTable(param)) tables.push_back(param);
    if (IsLinearWeight(param)) weights.push_back(param);
  }
  for (Op* weight : weights) {
    const TensorType& w = weight->out();
    for (Op* table : tables) {
      const TensorType& t = table->out();
      if (w.dtype != t.dtype) continue;
      bool alike = w.shape == t.shape,
           across = w.shape[0] == t.shape[1] && w.shape[1] == t.shape[0];
      bool same = alike && SameData(graph, table, weight, false);
      if (!same && !(across && SameData(graph, table, weight, true))) continue;
      Merge(graph, table, weight, !same);
      break;
    }
  }
}

}  // namespace shardc::recover
