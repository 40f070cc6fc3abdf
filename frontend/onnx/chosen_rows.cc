#include "frontend/onnx/chosen_rows.h"

#include <algorithm>
#include <cstring>

#include "frontend/onnx/converter.h"
#include "ir/constant.h"
#include "ir/diagnostic.h"
#include "ir/op_def.h"
#include "ir/run_reference.h"

namespace shardc::onnx_import {
namespace {

Diagnostic Mixes(const Op& op) {
  return Diagnostic(
      "E1301", ExitCode::kBadModel, "",
      StrCat(op.name(), " over rows that are chosen only when the model runs is not ", "supported"),
      kDataDecides);
}

Diagnostic Counts(const Op& op) {
  return Diagnostic(
      "E1301", ExitCode::kBadModel, "",
      StrCat(op.name(), " of how many rows are chosen when the model runs is not ", "supported"),
      "sum over a mask to count them");
}

// A factor of a rule that counts rows, each so often.
struct RowFactor {
  int factor;
  int64_t each;
};

// Of a dim that holds `each` elements of each of the rows; nothing where no factor counts them.
std::optional<RowFactor> FactorOf(const ShardingRule& rule, const DimFactors& dim, int64_t rows) {
  if (!dim.segments.empty()) return std::nullopt;
  for (int f : dim.factors) {
    const Factor& factor = rule.factors[f];
    if (factor.size == 1 && rows > 1) continue;
    if (factor.kind != FactorKind::kPlain || factor.size % rows != 0) return std::nullopt;
    return RowFactor{f, factor.size / rows};
  }
  return std::nullopt;
}

// Whether all along the dim is the same: what ONNX has there is one element, that is repeated.
bool IsUniformAlong(const Value* v, int dim) {
  for (;;) {
    const Shape& shape = v->type.shape;
    if (shape[dim] == 1) return true;
    const Op* op = v->producer;
    if (op != nullptr && op->name() == "broadcast_to") {
      dim -= v->type.rank() - op->in(0).rank();
      if (dim < 0) return true;
      v = op->operands[0];
      continue;
    }
    const HostTensor* t = ConstantOf(v);
    if (t == nullptr) return false;
    int64_t inner = DTypeSize(t->dtype());
    for (int d = dim + 1; d < v->type.rank(); ++d) inner *= shape[d];
    for (int64_t at = 0, all = t->bytes(); at + inner < all; at += inner) {
      const bool last = at / inner % shape[dim] == shape[dim] - 1;
      if (!last && std::memcmp(t->raw() + at, t->raw() + at + inner, inner) != 0) return false;
    }
    return true;
  }
}

bool DividesByZero(const Op& op, const HostTensor& by) {
  if ((op.name() != "div" && op.name() != "mod") || !IsInteger(by.dtype())) return false;
  for (int64_t i = 0; i < by.num_elements(); ++i) {
    if (by.AsInt(i) == 0) return true;
  }
  return false;
}

bool SameBytes(const HostTensor& a, const HostTensor& b) {
  return a.shape() == b.shape() && std::equal(a.raw(), a.raw() + a.bytes(), b.raw());
}

}  // namespace

const ChosenRows::Mark* ChosenRows::Of(const Value* v) const {
  auto it = marks_.find(v);
  if (it == marks_.end()) return nullptr;
  const Mark& mark = it->second;
  return mark.coordinates < 0 && all_.contains(mark.chosen) ? nullptr : &mark;
}

const ChosenRows::Count* ChosenRows::CountOf(const Value* v) const {
  auto it = counts_.find(v);
  return it == counts_.end() || all_.contains(it->second.chosen) ? nullptr : &it->second;
}

int64_t ChosenRows::RowsOf(const Mark& mark) { return mark.chosen->type.shape[0]; }

void ChosenRows::Follow(const Op& op) {
  if (marks_.empty() || paused_ > 0) return;
  if (std::ranges::any_of(op.operands, [&](const Value* v) { return IsCount(v); })) {
    throw Counts(op);
  }
  if (std::ranges::none_of(op.operands, [&](const Value* v) { return Of(v) != nullptr; })) return;
  if (!op.def->rule) throw Mixes(op);
  const ShardingRule rule = op.def->rule(op);
  std::optional<RowFactor> rows;
  Mark from;
  for (size_t i = 0; i < op.operands.size(); ++i) {
    const Mark* mark = Of(op.operands[i]);
    if (mark == nullptr) continue;
    const auto here = FactorOf(rule, rule.operands[i][mark->dim], RowsOf(*mark));
    const bool same =
        !rows || (here && here->factor == rows->factor && mark->chosen == from.chosen);
    if (!here || !same) throw Mixes(op);
    rows = here;
    from = *mark;
  }
  // A row that is chosen stands in ONNX elsewhere among them than here: beside it the same.
  for (size_t i = 0; i < op.operands.size(); ++i) {
    const int dim = DimOfFactor(rule.operands[i], rows->factor);
    if (dim >= 0 && Of(op.operands[i]) == nullptr && !IsUniformAlong(op.operands[i], dim)) {
      throw Mixes(op);
    }
  }
  const bool moved = op.name() == "transpose";
  if (from.coordinates >= 0 && !moved) throw Mixes(op);
  for (size_t i = 0; i < op.results.size(); ++i) {
    const Value* r = op.results[i];
    Mark mark = from;
    mark.dim = DimOfFactor(rule.results[i], rows->factor);
    if (mark.dim < 0) throw Mixes(op);
    const auto here = FactorOf(rule, rule.results[i][mark.dim], RowsOf(from));
    if (!here || here->factor != rows->factor) throw Mixes(op);
    mark.each = r->type.shape[mark.dim] / RowsOf(from);
    if (from.coordinates >= 0) {
      const Ints& perm = op.attrs.IntList("perm");
      mark.coordinates = static_cast<int>(std::ranges::find(perm, from.coordinates) - perm.begin());
    }
    Set(r, mark);
  }
}

void ChosenRows::FollowFolded(const Op& op) {
  if (marks_.empty() || paused_ > 0) return;
  Value* chosen = nullptr;
  for (const Value* v : op.operands) {
    const Count* count = CountOf(v);
    if (count == nullptr) continue;
    if (chosen != nullptr && chosen != count->chosen) throw Counts(op);
    chosen = count->chosen;
  }
  if (chosen == nullptr) return Follow(op);
  std::vector<TensorType> types;
  for (const Value* r : op.results) types.push_back(r->type);
  std::vector<Count> made(op.results.size(), Count{{}, chosen});
  for (size_t n = 0; n < NumbersOf(chosen).size(); ++n) {
    std::vector<const HostTensor*> operands;
    for (const Value* v : op.operands) {
      const Count* count = CountOf(v);
      operands.push_back(count == nullptr ? ConstantOf(v) : &count->with[n]);
    }
    if (DividesByZero(op, *operands.back())) throw Counts(op);
    std::vector<HostTensor> with = RunReference(*op.def, op.attrs, operands, types);
    for (size_t i = 0; i < with.size(); ++i) made[i].with.push_back(std::move(with[i]));
  }
  for (size_t i = 0; i < op.results.size(); ++i) {
    const HostTensor& is = *ConstantOf(op.results[i]);
    if (std::ranges::all_of(made[i].with, [&](const auto& t) { return SameBytes(t, is); }))
      continue;
    if (!IsInteger(is.dtype())) throw Counts(op);
    counts_.insert_or_assign(op.results[i], std::move(made[i]));
  }
}

std::vector<int64_t> ChosenRows::NumbersOf(const Value* chosen) {
  constexpr int64_t kEach = 64;
  const int64_t rows = chosen->type.shape[0];
  std::vector<int64_t> numbers;
  for (int64_t n = 0; n < rows; n += n < kEach ? 1 : n / 8) numbers.push_back(n);
  if (rows > 0) numbers.push_back(rows - 1);
  numbers.push_back(rows + 1);
  return numbers;
}

void ChosenRows::SetCount(const Value* count, const Mark& mark,
                          const std::function<HostTensor(int64_t rows)>& with) {
  Count made{{}, mark.chosen};
  for (const int64_t n : NumbersOf(mark.chosen)) made.with.push_back(with(n));
  counts_.insert_or_assign(count, std::move(made));
}

bool ChosenRows::TakeShape(const Value* v, const Value* shape) {
  const Count* found = CountOf(shape);
  if (found == nullptr) return true;
  const Count& count = *found;
  const HostTensor& is = *ConstantOf(shape);
  const std::vector<int64_t> numbers = NumbersOf(count.chosen);
  const int64_t dims = is.num_elements(), rows = count.chosen->type.shape[0];
  if (shape->type.rank() != 1 || dims > v->type.rank()) return false;
  std::optional<Mark> counted;
  for (int64_t d = 0; d < dims; ++d) {
    const bool same = std::ranges::all_of(
        count.with, [&](const HostTensor& t) { return t.AsInt(d) == is.AsInt(d); });
    if (same) continue;
    const int64_t each = rows > 0 ? is.AsInt(d) / rows : 0;
    for (size_t n = 0; n < numbers.size(); ++n) {
      if (each < 1 || count.with[n].AsInt(d) != numbers[n] * each) return false;
    }
    if (counted) return false;
    counted = Mark{v->type.rank() - static_cast<int>(dims - d), count.chosen, each};
  }
  if (!counted) return true;
  const Mark* mark = Of(v);
  if (mark != nullptr) {
    return mark->dim == counted->dim && mark->chosen == counted->chosen &&
           mark->each == counted->each;
  }
  Set(v, *counted);
  return true;
}

bool ChosenRows::EndsBehind(const Value* v, const std::vector<int>& dims, const Value* ends) const {
  const Mark* mark = Of(v);
  const Count* found = CountOf(ends);
  if (mark == nullptr || found == nullptr || mark->chosen != found->chosen) return false;
  const HostTensor& is = *ConstantOf(ends);
  if (is.num_elements() != std::ssize(dims)) return false;
  const std::vector<int64_t> numbers = NumbersOf(mark->chosen);
  for (size_t n = 0; n < numbers.size(); ++n) {
    const HostTensor& with = found->with[n];
    for (int64_t i = 0; i < is.num_elements(); ++i) {
      const bool behind = dims[i] == mark->dim ? with.AsInt(i) >= numbers[n] * mark->each
                                               : with.AsInt(i) == is.AsInt(i);
      if (!behind) return false;
    }
  }
  return true;
}

void ChosenRows::SetTaken(const Value* rows, Value* data, std::vector<int64_t> positions) {
  taken_.insert_or_assign(rows, Taken{data, std::move(positions)});
}

const Value* ChosenRows::TakenFrom(const Value* rows, const std::vector<int64_t>& positions) const {
  auto taken = taken_.find(rows);
  return taken != taken_.end() && taken->second.positions == positions ? taken->second.data
                                                                       : nullptr;
}

}  // namespace shardc::onnx_import
