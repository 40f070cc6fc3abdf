#include "frontend/onnx/chosen_rows.h"

#include <algorithm>

#include "frontend/onnx/converter.h"
#include "frontend/onnx/fold.h"
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

// `value` with those elements that a row more changes set to a number.
HostTensor WithCounts(const HostTensor& value, const HostTensor& with_one_more, int64_t number) {
  HostTensor set = value;
  for (int64_t i = 0; i < value.num_elements(); ++i) {
    if (value.AsInt(i) != with_one_more.AsInt(i)) set.SetDouble(i, static_cast<double>(number));
  }
  return set;
}

bool SameBytes(const HostTensor& a, const HostTensor& b) {
  return a.shape() == b.shape() && std::equal(a.raw(), a.raw() + a.bytes(), b.raw());
}

}  // namespace

const ChosenRows::Mark* ChosenRows::Of(const Value* v) const {
  auto it = marks_.find(v);
  return it == marks_.end() ? nullptr : &it->second;
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
  std::vector<const HostTensor*> operands;
  for (const Value* v : op.operands) {
    auto count = counts_.find(v);
    if (count != counts_.end()) chosen = count->second.chosen;
    operands.push_back(count == counts_.end() ? ConstantOf(v) : &count->second.with_one_more);
  }
  if (chosen == nullptr) return Follow(op);
  std::vector<TensorType> types;
  for (const Value* r : op.results) types.push_back(r->type);
  const std::vector<HostTensor> more = RunReference(*op.def, op.attrs, operands, types);
  // A comparison may be with none or one.
  for (const int64_t number : {0, 1}) {
    if (op.results[0]->type.dtype != DType::kBool) break;
    std::vector<HostTensor> set;
    set.reserve(op.operands.size());
    std::vector<const HostTensor*> few = operands;
    for (size_t i = 0; i < op.operands.size(); ++i) {
      if (!IsCount(op.operands[i])) continue;
      set.push_back(WithCounts(*ConstantOf(op.operands[i]), *operands[i], number));
      few[i] = &set.back();
    }
    if (!SameBytes(RunReference(*op.def, op.attrs, few, types)[0], *ConstantOf(op.results[0]))) {
      throw Counts(op);
    }
  }
  for (size_t i = 0; i < op.results.size(); ++i) {
    if (SameBytes(more[i], *ConstantOf(op.results[i]))) continue;
    if (!IsInteger(more[i].dtype())) throw Counts(op);
    SetCount(op.results[i], more[i], chosen);
  }
}

void ChosenRows::SetCount(const Value* count, HostTensor with_one_more, Value* chosen) {
  counts_.insert_or_assign(count, Count{std::move(with_one_more), chosen});
}

void ChosenRows::TakeShape(const Value* v, const Value* shape) {
  auto count = counts_.find(shape);
  if (count == counts_.end() || Of(v) != nullptr) return;
  const HostTensor &is = *ConstantOf(shape), &more = count->second.with_one_more;
  const int64_t dims = is.num_elements();
  for (int64_t d = 0; d < dims; ++d) {
    if (is.AsInt(d) == more.AsInt(d)) continue;
    Set(v, {v->type.rank() - static_cast<int>(dims - d), count->second.chosen});
  }
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
