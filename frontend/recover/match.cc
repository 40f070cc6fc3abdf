#include "frontend/recover/match.h"

#include <algorithm>
#include <set>
#include <vector>

#include "ir/contains.h"
#include "ir/op_def.h"

namespace shardc::recover {

bool ApplyRules(Graph& graph, std::initializer_list<Rule> rules) {
  bool changed = false;
  for (bool again = true; again;) {
    again = false;
    for (Op* op = graph.ops().empty() ? nullptr : graph.ops().front().get(); op != nullptr;
         op = graph.Next(op)) {
      if (op->results.empty()) continue;
      for (Rule rule : rules) {
        bool used = std::any_of(op->results.begin(), op->results.end(),
                                [&](const Value* v) { return graph.HasUses(v); });
        if (!used) break;
        Builder builder(graph, op, *op);
        Value* value = rule(builder, op);
        if (value == nullptr || value == op->result()) continue;
        SHARDC_CHECK(value->type.SameTensor(op->out()), op->name(), " at ", op->site);
        if (value->name.empty()) value->name = op->result()->name;
        graph.ReplaceAllUses(op->result(), value);
        again = true;
      }
    }
    graph.EraseDead();
    changed |= again;
  }
  return changed;
}

bool OneOf(std::string_view name, std::initializer_list<std::string_view> names) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

bool Arranges(const Op* op) {
  return op != nullptr && OneOf(op->name(), {"reshape", "transpose", "slice", "split", "gather",
                                             "embedding", "cast"});
}

const Value* ArrangedFrom(const Value* v) {
  while (Arranges(v->producer)) v = v->producer->operands[0];
  return v;
}

Op* ProducedBy(const Value* v, std::string_view op) {
  return v->producer != nullptr && v->producer->name() == op ? v->producer : nullptr;
}

Op* FloatCast(const Value* v, bool widens) {
  Op* cast = ProducedBy(v, "cast");
  if (cast == nullptr || !IsFloat(v->type.dtype) || !IsFloat(cast->in(0).dtype)) return nullptr;
  int64_t from = DTypeSize(cast->in(0).dtype), to = DTypeSize(v->type.dtype);
  return (widens ? from < to : from > to) ? cast : nullptr;
}

bool KeepsOrder(const Op* op) {
  if (op == nullptr || op->name() != "transpose") return op && op->name() == "reshape";
  Ints larger = op->attrs.IntList("perm");
  std::erase_if(larger, [&](int64_t d) { return op->in(0).shape[d] == 1; });
  return std::ranges::is_sorted(larger);
}

Value* Unshaped(Value* v) {
  while (Op* reshape = ProducedBy(v, "reshape")) v = reshape->operands[0];
  return v;
}

const Value* Unrounded(const Value* v) {
  const Op* sum = ProducedBy(v, "add");
  const Op* difference = sum == nullptr ? nullptr : ProducedBy(sum->operands[1], "sub");
  if (!difference || !difference->attrs.Bool("detached", false) ||
      difference->operands[1] != sum->operands[0]) {
    return nullptr;
  }
  const Op* chosen = ProducedBy(sum->operands[0], "where");
  return chosen && IsSplat(chosen->operands[2], 0) ? chosen->operands[1] : sum->operands[0];
}

bool IsProduct(const Op* op) {
  return OneOf(op->name(), {"matmul", "matmul_nt", "matmul_rows", "matmul_rows_nt"});
}

bool MultipliesByTransposed(const Op* product) { return product->name().ends_with("_nt"); }

bool IsNorm(const Op* op) { return OneOf(op->name(), {"layer_norm", "rms_norm"}); }

bool IsLookup(const Op* op) {
  return op->name() == "embedding" || (op->name() == "gather" && op->attrs.Int("axis", 0) == 0);
}

bool TrainsRows(const Op* lookup, const Ints& rows) {
  return !Contains(rows, lookup->attrs.Int("padding_idx", -1));
}

bool TrainsAllRows(const Op* lookup) { return !lookup->attrs.Has("padding_idx"); }

bool MultipliesBy(const Op* op, const Value* v) {
  return IsProduct(op) && op->operands[1] == v && op->operands[0] != v;
}

bool IsParam(const Value* v) { return ProducedBy(v, "param") != nullptr; }

bool DependsOnParam(const Value* v) {
  std::set<const Op*> seen;
  std::vector<const Value*> waiting = {v};
  while (!waiting.empty()) {
    const Op* op = waiting.back()->producer;
    waiting.pop_back();
    if (op == nullptr || !seen.insert(op).second) continue;
    if (op->name() == "param") return true;
    waiting.insert(waiting.end(), op->operands.begin(), op->operands.end());
  }
  return false;
}

std::optional<double> SplatOf(const Value* v) {
  while (v->producer != nullptr) {
    std::string_view op = v->producer->name();
    bool same_elements = op == "broadcast_to" || op == "reshape" || op == "slice";
    bool float_cast = op == "cast" && IsFloat(v->producer->in(0).dtype) && IsFloat(v->type.dtype);
    if (!same_elements && !float_cast) break;
    v = v->producer->operands[0];
  }
  const HostTensor* data = ConstantOf(v);
  if (data == nullptr || data->num_elements() == 0) return std::nullopt;
  const std::byte* first = data->raw();
  int64_t size = DTypeSize(data->dtype());
  for (int64_t i = size; i < data->bytes(); i += size) {
    if (!std::equal(first, first + size, first + i)) return std::nullopt;
  }
  return data->AsDouble(0);
}

bool IsSplat(const Value* v, double value) {
  if (std::optional<double> splat = SplatOf(v)) return *splat == value;
  const HostTensor* data = value == 0 ? ConstantOf(v) : nullptr;
  if (data == nullptr || data->num_elements() == 0) return false;
  for (int64_t i = 0; i < data->num_elements(); ++i) {
    if (data->AsDouble(i) != 0) return false;
  }
  return true;
}

std::optional<std::pair<Value*, double>> ScaledBy(const Value* v) {
  Op* op = v->producer;
  if (op == nullptr || !IsFloat(v->type.dtype)) return std::nullopt;
  bool mul = op->name() == "mul", div = op->name() == "div";
  if (!mul && !div) return std::nullopt;
  for (int i = 0; i < (mul ? 2 : 1); ++i) {
    std::optional<double> c = SplatOf(op->operands[1 - i]);
    if (!c || op->in(i).shape != v->type.shape) continue;
    return std::pair(op->operands[i], mul ? *c : 1 / *c);
  }
  return std::nullopt;
}

Value* SquareOf(const Value* v) {
  if (Op* mul = ProducedBy(v, "mul")) {
    return mul->operands[0] == mul->operands[1] ? mul->operands[0] : nullptr;
  }
  Op* pow = ProducedBy(v, "pow");
  return pow && IsSplat(pow->operands[1], 2) && pow->in(0).shape == v->type.shape ? pow->operands[0]
                                                                                  : nullptr;
}

namespace {

std::optional<Polynomial> Product(const Polynomial& a, const Polynomial& b) {
  Polynomial out{};
  for (size_t i = 0; i < a.size(); ++i) {
    for (size_t j = 0; j < b.size(); ++j) {
      if (a[i] == 0 || b[j] == 0) continue;
      if (i + j >= out.size()) return std::nullopt;
      out[i + j] += a[i] * b[j];
    }
  }
  return out;
}

}  // namespace

std::optional<Polynomial> PolynomialIn(const Value* x, const Value* v, int depth) {
  if (v == x) return Polynomial{0, 1, 0, 0};
  if (std::optional<double> c = SplatOf(v)) return Polynomial{*c, 0, 0, 0};
  if (v->producer == nullptr || depth == 0 || v->type.shape != x->type.shape) return std::nullopt;
  const Op& op = *v->producer;
  auto operand = [&](int i) { return PolynomialIn(x, op.operands[i], depth - 1); };
  if (op.name() == "neg") {
    std::optional<Polynomial> a = operand(0);
    return a ? Product(*a, {-1, 0, 0, 0}) : std::nullopt;
  }
  if (op.attrs.Bool("detached", false)) return std::nullopt;
  bool add = op.name() == "add", sub = op.name() == "sub", mul = op.name() == "mul";
  bool div = op.name() == "div", pow = op.name() == "pow";
  if (!add && !sub && !mul && !div && !pow) return std::nullopt;
  std::optional<Polynomial> a = operand(0), b = operand(1);
  if (!a || !b) return std::nullopt;
  if (mul) return Product(*a, *b);
  if (div || pow) {
    std::optional<double> c = SplatOf(op.operands[1]);
    if (!c) return std::nullopt;
    if (div) return Product(*a, {1 / *c, 0, 0, 0});
    if (*c != 1 && *c != 2 && *c != 3) return std::nullopt;
    std::optional<Polynomial> power = a;
    for (int i = 1; i < *c && power; ++i) power = Product(*power, *a);
    return power;
  }
  for (size_t i = 0; i < a->size(); ++i) (*a)[i] += add ? (*b)[i] : -(*b)[i];
  return a;
}

std::optional<int64_t> Consecutive(const HostTensor& ids) {
  if (ids.shape().empty() || ids.num_elements() == 0) return std::nullopt;
  int64_t row = ids.shape().back(), first = ids.AsInt(0);
  for (int64_t i = 0; i < ids.num_elements(); ++i) {
    if (ids.AsInt(i) != first + i % row) return std::nullopt;
  }
  return first;
}

Value* IdsOfOneHot(const Value* v, int64_t n) {
  while (Op* op = v->producer) {
    const bool marks = op->name() == "where" && IsSplat(op->operands[1], 1) &&
                       IsSplat(op->operands[2], 0) && op->in(0).shape == v->type.shape;
    if (op->name() != "cast" && !marks) break;
    v = op->operands[0];
  }
  Op* equal = ProducedBy(v, "equal");
  for (int i = 0; equal && i < 2; ++i) {
    const HostTensor* places = ConstantOf(equal->operands[i]);
    Value* ids = equal->operands[1 - i];
    if (places && IsInteger(places->dtype()) && places->num_elements() == n &&
        Consecutive(*places) == 0 && places->shape().back() == n && ids->type.rank() > 0 &&
        ids->type.shape.back() == 1 && ids->type.num_elements() * n == v->type.num_elements()) {
      return ids;
    }
  }
  return nullptr;
}

std::pair<Value*, Value*> WithinTable(Builder& b, Value* ids, int64_t n, DType dtype) {
  auto number = [&](int64_t i) { return b.Scalar(ids->type.dtype, static_cast<double>(i)); };
  Value* inside = b.Make("min", {b.Make("max", {ids, number(0)}), number(n - 1)});
  return {inside, b.Cast(b.Make("equal", {ids, inside}), dtype)};
}

bool OnlyFirstResultRead(const Op& op) {
  return std::all_of(op.results.begin() + 1, op.results.end(),
                     [](const Value* v) { return CountUses(v) == 0; });
}

bool IsPerm(const Op* transpose, const Ints& perm) {
  return transpose != nullptr && transpose->attrs.IntList("perm") == perm;
}

Value* BeforeSwap(const Value* v) {
  Op* transpose = ProducedBy(v, "transpose");
  return IsPerm(transpose, kSwapHeads) ? transpose->operands[0] : nullptr;
}

int HeadsDim(const Op& attention) { return attention.attrs.String("layout") == "bhsd" ? 1 : 2; }

int64_t CountUses(const Value* v) {
  return static_cast<int64_t>(v->users.size() + v->as_outputs.size());
}

}  // namespace shardc::recover
