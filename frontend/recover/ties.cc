// Exporters fold the transpose of a tied embedding into a second tensor, or, of a model that casts
// its weights down for products, what it is rounded to. Trained apart, the two drift.
#include <algorithm>
#include <cstring>

#include "frontend/recover/patterns.h"
#include "ir/convert.h"

namespace shardc::recover {
namespace {

const TensorSource* SourceOf(const Graph& graph, const Op* param) {
  auto it = graph.sources.find(param->attrs.String("name"));
  return it == graph.sources.end() ? nullptr : it->second.get();
}

// A box of rows of the source's tensor, as elements of `to`.
HostTensor Rows(const TensorSource& source, DType from, DType to, const Shape& at,
                const Shape& size) {
  HostTensor rows(from, size);
  source.Read(at, size, rows.raw());
  return from == to ? rows : Converted(rows, to);
}

// Whether table[i, j] == other[i, j] (transposed: other[j, i]) everywhere, bit for bit once the
// table is rounded to the other's type, and there are more than two values among the elements: two
// tensors that a fill made alike, or identity matrices, are not tied.
bool SameData(const Graph& graph, const Op* table, const Op* other, bool transposed) {
  const TensorSource *a = SourceOf(graph, table), *b = SourceOf(graph, other);
  if (a == nullptr || b == nullptr) return false;
  const DType type = other->out().dtype;
  const Shape& shape = table->out().shape;
  const int64_t rows = shape[0], columns = shape[1], size = DTypeSize(type);
  if (rows == 0 || columns == 0) return false;
  const int64_t block = std::clamp<int64_t>((int64_t{1} << 18) / columns, 1, rows);
  std::vector<std::vector<std::byte>> values;  // up to three
  for (int64_t row = 0; row < rows; row += block) {
    const int64_t count = std::min(block, rows - row);
    const HostTensor x = Rows(*a, table->out().dtype, type, {row, 0}, {count, columns});
    const HostTensor y = transposed ? Rows(*b, type, type, {0, row}, {columns, count})
                                    : Rows(*b, type, type, {row, 0}, {count, columns});
    for (int64_t i = 0; i < count; ++i) {
      for (int64_t j = 0; j < columns; ++j) {
        const std::byte* p = x.raw() + (i * columns + j) * size;
        const std::byte* q = y.raw() + (transposed ? j * count + i : i * columns + j) * size;
        if (std::memcmp(p, q, size) != 0) return false;
        const bool known = values.size() > 2 || std::ranges::any_of(values, [&](const auto& v) {
                             return std::memcmp(p, v.data(), v.size()) == 0;
                           });
        if (!known) values.emplace_back(p, p + size);
      }
    }
  }
  return values.size() > 2;
}

bool IsTable(const Op* param) {
  return std::ranges::any_of(param->result()->users, [&](const Op* user) {
    return IsLookup(user) && user->operands[0] == param->result();
  });
}

bool IsLinearWeight(const Op* param) {
  const std::vector<Op*>& users = param->result()->users;
  return !users.empty() && std::all_of(users.begin(), users.end(), [&](const Op* user) {
    return MultipliesBy(user, param->result());
  });
}

void Append(Op* param, const char* list, const Strings& names) {
  if (names.empty()) return;
  Strings all = param->attrs.StringList(list, {});
  all.insert(all.end(), names.begin(), names.end());
  param->attrs.Set(list, std::move(all));
}

// The names of `other` are the table's, too; not those of what is rounded.
void TakeNames(Op* table, const Op* other, bool transposed) {
  Strings names = {other->attrs.String("name")};
  for (const std::string& alias : other->attrs.StringList("aliases", {})) names.push_back(alias);
  Strings sources = other->attrs.StringList("source_aliases", {});
  auto is_source = [&](const std::string& n) {
    return std::find(sources.begin(), sources.end(), n) != sources.end();
  };
  const bool rounded = table->out().dtype != other->out().dtype;
  if (rounded) names = sources;
  Append(table, "aliases", names);
  Append(table, "merged", other->attrs.StringList("merged", {}));
  // What was transposed twice is the table.
  const std::string turned_back =
      transposed && !rounded ? other->attrs.String("transpose_of", "") : "";
  std::erase(sources, turned_back);
  std::erase(names, turned_back);
  Append(table, "source_aliases", sources);
  std::erase_if(names, is_source);
  if (transposed) Append(table, "transposed_aliases", names);
}

void Merge(Graph& graph, Op* table, Op* other, bool transposed) {
  const std::string name = table->attrs.String("name"), other_name = other->attrs.String("name");
  const DType type = other->out().dtype;
  const char* turned = transposed ? " (transposed)" : "";
  TakeNames(table, other, transposed);
  graph.notes.push_back(table->out().dtype == type
                            ? StrCat("parameters '", name, "' and '", other_name,
                                     "' are one matrix", turned, ": tied as '", name, "'")
                            : StrCat("parameter '", other_name, "' is '", name, "' rounded to ",
                                     DTypeName(type), turned, ": tied to it"));
  // Users of the other one may stand before the table.
  graph.MoveBefore(table, graph.ops().front().get());
  Builder builder(graph, graph.Next(table));
  Value* value = builder.Cast(table->result(), type);
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
      if (w.dtype != t.dtype && !(IsHalf(w.dtype) && IsFloat(t.dtype) && !IsHalf(t.dtype)))
        continue;
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
