// Rotary positions: what each half of a row is a sum of, whatever the order in which an exporter
// cuts, negates, multiplies, adds and joins; x cos + rotate(x) sin among them, whose tables hold
// each angle twice.
#include <algorithm>
#include <numeric>

#include "frontend/recover/patterns.h"
#include "frontend/recover/row_view.h"
#include "ir/op_def.h"

namespace shardc::recover {
namespace {

constexpr int64_t kLongestRow = 4096;  // heads are far shorter
constexpr int kDeepest = 16;

Ints Places(int64_t first, int64_t step, int64_t count) {
  Ints at(count);
  for (int64_t i = 0; i < count; ++i) at[i] = first + i * step;
  return at;
}

// The firsts and the seconds of all pairs.
struct Pairs {
  bool interleaved;
  Ints first, second;
};
Pairs PairsOf(int64_t row, bool interleaved) {
  const int64_t half = row / 2, step = interleaved ? 2 : 1;
  return {interleaved, Places(0, step, half), Places(interleaved ? 1 : half, step, half)};
}

// The same rows before what made them, whatever dims count them there.
std::optional<RowView> MovedRows(const RowView& view) {
  std::optional<RowView> moved = Moved(view);
  return moved ? moved : BeforeReshape(view);
}

// a * b, or less that. The last `shared` of the dims that count its rows are those of the sum.
struct Term {
  bool negative;
  RowView a, b;
  int64_t shared;
};

int64_t SharedDims(const Shape& a, const Shape& b) {
  return std::mismatch(a.rbegin(), a.rend(), b.rbegin(), b.rend()).first - a.rbegin();
}

// A view that a factor or a term of a sum equals, or that times -1.
struct Source {
  bool negative;
  RowView view;
};

// The two terms of which the view, with rows counted by `lead`, is the sum; none where it is no sum
// of two products.
std::vector<Term> Terms(const RowView& sum, const Shape& lead) {
  std::vector<Source> waiting = {{false, sum}};  // the first is the last
  std::vector<Term> terms;
  for (int steps = 0; !waiting.empty(); ++steps) {
    // Each that waits is a term or more.
    if (steps == 2 * kDeepest || waiting.size() + terms.size() > 2) return {};
    const auto [negative, view] = std::move(waiting.back());
    waiting.pop_back();
    const Op* op = view.v->producer;
    if (op == nullptr) return {};
    auto wait = [&](bool less, int operand) {
      waiting.push_back({negative != less, {op->operands[operand], view.trailing, view.at}});
    };
    if (op->name() == "neg") {
      wait(true, 0);
    } else if (op->name() == "mul") {
      terms.push_back({negative, OperandOf(view, op->operands[0]), OperandOf(view, op->operands[1]),
                       SharedDims(view.Lead(), lead)});
    } else if (op->name() == "add" || op->name() == "sub") {
      if (op->in(0).shape != view.v->type.shape || op->in(1).shape != view.v->type.shape) return {};
      wait(op->name() == "sub", 1);
      wait(false, 0);
    } else {
      std::optional<RowView> moved = MovedRows(view);
      if (!moved) return {};
      waiting.push_back({negative, std::move(*moved)});
    }
  }
  return terms.size() == 2 ? terms : std::vector<Term>();
}

std::vector<Source> SourcesOf(const Term& term, const RowView& factor) {
  std::vector<Source> sources = {{term.negative, factor}};
  while (sources.size() < static_cast<size_t>(kDeepest)) {
    const Source& last = sources.back();
    if (const Op* neg = ProducedBy(last.view.v, "neg")) {
      sources.push_back({!last.negative, {neg->operands[0], last.view.trailing, last.view.at}});
    } else if (std::optional<RowView> moved = MovedRows(last.view)) {
      sources.push_back({last.negative, std::move(*moved)});
    } else {
      break;
    }
  }
  return sources;
}

bool SamePlaces(const RowView& a, const RowView& b) {
  return a.v == b.v && a.size() == b.size() && a.at == b.at;
}

// Whether it varies along the last `dims` of the lead alone.
bool VariesWithin(const RowView& table, int64_t dims) {
  const Shape lead = table.Lead();
  return std::all_of(lead.begin(), lead.end() - std::min(dims, std::ssize(lead)),
                     [](int64_t n) { return n == 1; });
}

// A term as an element of x times one of a table.
struct Use {
  bool negative;
  const RowView* table;
};
std::optional<Use> UseOf(const Term& term, const RowView& x) {
  for (bool second : {false, true}) {
    const RowView& table = second ? term.a : term.b;
    if (!VariesWithin(table, term.shared)) continue;
    for (const Source& s : SourcesOf(term, second ? term.b : term.a)) {
      if (SamePlaces(s.view, x)) return Use{s.negative, &table};
    }
  }
  return std::nullopt;
}

Ints Shifted(const Ints& at, int64_t by) {
  Ints shifted = at;
  for (int64_t& i : shifted) i += by;
  return shifted;
}

struct Rotation {
  RowView first;  // of x, whose rows may be longer than what is turned
  const RowView *cos, *sin;
  bool inverse;
};

// y1 = x1 cos - x2 sin and y2 = x2 cos + x1 sin, or with -sin, where x1 is that view.
std::optional<Rotation> RotationOf(const RowView& x1, const Pairs& pairs, const Term& cos_term,
                                   const Term& sin_term, const std::vector<Term>& second) {
  const int64_t begin = x1.at[0] - pairs.first[0];
  if (x1.at != Shifted(pairs.first, begin) || begin + 2 * std::ssize(x1.at) > x1.size()) {
    return std::nullopt;
  }
  const RowView x2{x1.v, x1.trailing, Shifted(pairs.second, begin)};
  const auto cos1 = UseOf(cos_term, x1), sin1 = UseOf(sin_term, x2);
  if (!cos1 || cos1->negative || !sin1) return std::nullopt;
  for (size_t i : {0, 1}) {
    const auto cos2 = UseOf(second[i], x2), sin2 = UseOf(second[1 - i], x1);
    if (!cos2 || cos2->negative || !sin2 || sin1->negative == sin2->negative) continue;
    if (!SameElements(*cos1->table, *cos2->table) || !SameElements(*sin1->table, *sin2->table))
      continue;
    return Rotation{x1, cos1->table, sin1->table, sin2->negative};
  }
  return std::nullopt;
}

// Elements [from, from + count) of x's rows, of which there are as many as `lead` says.
Value* RowsOf(Builder& b, const RowView& x, Shape lead, int64_t from, int64_t count) {
  Shape shape = std::move(lead);
  shape.push_back(x.size());
  const int last = static_cast<int>(shape.size()) - 1;
  return b.Slice(b.Reshape(x.v, std::move(shape)), last, from, from + count);
}

bool SameRows(const RowView& a, const RowView& b) {
  return NumElements(a.Lead()) == NumElements(b.Lead());
}

// The table beside rows that `dims` dims count, where it may have more, of 1, in front.
Value* TableBeside(Builder& b, const RowView& view, int64_t dims) {
  Value* table = Take(b, view);
  if (table == nullptr || table->type.rank() <= dims + 1) return table;
  const Shape& shape = table->type.shape;
  return b.Reshape(table, {shape.end() - dims - 1, shape.end()});
}

Value* RecoverAs(Builder& b, const RowView& y, bool interleaved) {
  const Pairs pairs = PairsOf(y.size(), interleaved);
  const Shape lead = y.Lead();
  const std::vector<Term> first = Terms({y.v, y.trailing, pairs.first}, lead);
  if (first.empty()) return nullptr;
  const std::vector<Term> second = Terms({y.v, y.trailing, pairs.second}, lead);
  if (second.empty()) return nullptr;
  for (size_t i : {0, 1}) {
    for (bool other : {false, true}) {
      for (const Source& s : SourcesOf(first[i], other ? first[i].b : first[i].a)) {
        if (s.negative || s.view.v->type.dtype != y.v->type.dtype || !SameRows(s.view, y)) continue;
        // Of two tensors of x's shape a constant is no x, nor what no parameter has a part in.
        const RowView& table = other ? first[i].a : first[i].b;
        if (ConstantOf(s.view.v) ||
            (SameRows(table, y) && !DependsOnParam(s.view.v) && DependsOnParam(table.v))) {
          continue;
        }
        const auto r = RotationOf(s.view, pairs, first[i], first[1 - i], second);
        if (!r) continue;
        Value *cos = TableBeside(b, *r->cos, std::ssize(lead)),
              *sin = TableBeside(b, *r->sin, std::ssize(lead));
        if (cos == nullptr || sin == nullptr) continue;
        const int64_t begin = r->first.at[0] - pairs.first[0];
        Value* x = RowsOf(b, r->first, lead, begin, y.size());
        Attributes attrs;
        if (interleaved) attrs.Set("interleaved", true);
        if (r->inverse) attrs.Set("inverse", true);
        Value* turned = b.Make("rotary", {x, cos, sin}, std::move(attrs));
        return b.Reshape(turned, y.v->type.shape);
      }
    }
  }
  return nullptr;
}

// Whether the last two dims, one of them of pairs, are made one for what reads them: nothing else
// tells a row of pairs from positions or heads of one pair each.
bool HasPairDim(const Value& y) {
  const Shape& shape = y.type.shape;
  if (shape.size() < 2 || (shape.back() != 2 && *(shape.end() - 2) != 2)) return false;
  const int64_t row = shape.back() * *(shape.end() - 2);
  return row > 0 && std::ranges::any_of(y.users, [&](const Op* user) {
           return user->name() == "reshape" && user->out().rank() > 0 &&
                  user->out().shape.back() > 0 && user->out().shape.back() % row == 0;
         });
}

Value* RecoverRotation(Builder& b, Op* op) {
  if (!OneOf(op->name(), {"add", "sub", "concat"}) || !IsFloat(op->out().dtype)) return nullptr;
  const Shape& shape = op->out().shape;
  std::vector<int> rows;
  if (HasPairDim(*op->result())) rows.push_back(2);
  if (!shape.empty()) rows.push_back(1);
  for (int trailing : rows) {
    const RowView y{op->result(), trailing, {}};
    if (y.size() < 2 || y.size() % 2 != 0 || y.size() > kLongestRow) continue;
    for (bool interleaved : {false, true}) {
      if (Value* turned = RecoverAs(b, y, interleaved)) return turned;
    }
  }
  return nullptr;
}

RowView WholeRows(Value* v) { return {v, 1, Places(0, 1, v->type.shape.back())}; }

// A split's neighbouring results as one, where only these two ops read them; else null.
Value* JoinedPieces(Builder& b, Value* first, Value* second) {
  Op* split = ProducedBy(first, "split");
  if (split == nullptr || split != second->producer || second->index != first->index + 1 ||
      CountUses(first) != 1 || CountUses(second) != 1 ||
      !IsLastAxis(split->attrs.Int("axis"), first->type.rank())) {
    return nullptr;
  }
  const auto at = static_cast<size_t>(first->index);
  Ints sizes = split->attrs.IntList("sizes");
  sizes[at] += sizes[at + 1];
  sizes.erase(sizes.begin() + first->index + 1);
  Builder in_place(b.graph(), b.graph().Next(split), *split);
  if (sizes.size() == 1) return split->operands[0];
  Attributes attrs = split->attrs;
  attrs.Set("sizes", std::move(sizes));
  Op* joined = in_place.Create("split", {split->operands[0]}, std::move(attrs));
  for (size_t i = 0; i < split->results.size(); ++i) {
    if (i == at || i == at + 1) continue;
    b.graph().ReplaceAllUses(split->results[i], joined->results[i < at ? i : i - 1]);
  }
  return joined->results[at];
}

// What is turned and what is left as it is behind it -> one op on both.
Value* JoinRest(Builder& b, Op* op) {
  if (op->name() != "concat" || op->operands.size() != 2 ||
      !IsLastAxis(op->attrs.Int("axis"), op->out().rank())) {
    return nullptr;
  }
  Value *turned = op->operands[0], *rest = op->operands[1];
  const Op* rotary = ProducedBy(turned, "rotary");
  if (rotary == nullptr || CountUses(turned) != 1) return nullptr;
  auto join = [&](Value* x) {
    return b.Make("rotary", {x, rotary->operands[1], rotary->operands[2]}, rotary->attrs);
  };
  if (Value* x = JoinedPieces(b, rotary->operands[0], rest)) return join(x);
  const Term none{};
  const std::vector<Source> rests = SourcesOf(none, WholeRows(rest));
  const int64_t part = turned->type.shape.back(), length = op->out().shape.back();
  for (const Source& s : SourcesOf(none, WholeRows(rotary->operands[0]))) {
    const RowView& x = s.view;
    if (s.negative || x.v->type.dtype != op->out().dtype || !SameRows(x, WholeRows(op->result()))) {
      continue;
    }
    const int64_t begin = x.at[0];
    if (x.at != Places(begin, 1, part)) continue;
    for (const Source& r : rests) {
      const RowView behind{x.v, x.trailing, Places(begin + part, 1, length - part)};
      if (r.negative || !SamePlaces(r.view, behind)) continue;
      Shape lead = op->out().shape;
      lead.pop_back();
      return join(RowsOf(b, x, std::move(lead), begin, length));
    }
  }
  return nullptr;
}

// Neighbours of the whole width that are turned before it comes apart into heads -> heads that are
// turned: these can be cut apart.
Value* TurnHeads(Builder& b, Op* op) {
  const Op* rotary = op->name() == "reshape" ? ProducedBy(op->operands[0], "rotary") : nullptr;
  if (rotary == nullptr || !rotary->attrs.Bool("interleaved")) return nullptr;
  if (CountUses(op->operands[0]) != 1) return nullptr;
  const Shape &rows = rotary->out().shape, &heads = op->out().shape;
  if (heads.size() != rows.size() + 1 || !std::equal(rows.begin(), rows.end() - 1, heads.begin()) ||
      heads.back() % 2 != 0 || heads.back() == 2) {
    return nullptr;
  }
  std::vector<Value*> operands = {b.Reshape(rotary->operands[0], heads)};
  for (int i : {1, 2}) {
    Shape table = rotary->in(i).shape;
    if (table.empty() || 2 * table.back() != rows.back()) return nullptr;
    table.back() = heads[heads.size() - 2];
    table.push_back(heads.back() / 2);
    operands.push_back(b.Reshape(rotary->operands[i], std::move(table)));
  }
  return b.Make("rotary", std::move(operands), rotary->attrs);
}

// Widened for the rotation alone: that computes on halves as it does on f32.
Value* DropCasts(Builder& b, Op* op) {
  if (op->name() != "cast" || !IsHalf(op->out().dtype)) return nullptr;
  const Op* rotary = ProducedBy(op->operands[0], "rotary");
  if (rotary == nullptr || CountUses(op->operands[0]) != 1) return nullptr;
  const Op* widen = ProducedBy(rotary->operands[0], "cast");
  if (widen == nullptr || widen->in(0).dtype != op->out().dtype ||
      rotary->out().dtype != DType::kF32) {
    return nullptr;
  }
  return b.Make("rotary", {widen->operands[0], rotary->operands[1], rotary->operands[2]},
                rotary->attrs);
}

}  // namespace

bool RecoverRotary(Graph& graph) {
  const bool found = ApplyRules(graph, {RecoverRotation});
  return ApplyRules(graph, {JoinRest, DropCasts, TurnHeads}) || found;
}

}  // namespace shardc::recover
