#include "passes/piecewise.h"

#include <algorithm>

#include "ir/op_def.h"
#include "passes/infers.h"
#include "passes/layout.h"

namespace shardc {

Piecewise::Piecewise(Graph& graph, Value* seed, int dim, int pieces)
    : graph_(&graph), pieces_(pieces), units_(seed->type.shape[dim]) {
  cut_.push_back(seed);
  dims_[seed] = dim;
}

int Piecewise::DimOf(const Value* v) const {
  auto it = dims_.find(v);
  return it == dims_.end() ? -1 : it->second;
}

// Sets the factor that the cut dim of v is cut along, or finds that it is the one set.
bool Piecewise::FactorOf(const std::vector<DimFactors>& dims, const Value* v, int* factor) const {
  int d = DimOf(v);
  if (d < 0) return true;
  const DimFactors& at = dims[d];
  if (at.factors.empty() || !at.segments.empty()) return false;
  if (*factor >= 0 && *factor != at.factors[0]) return false;
  *factor = at.factors[0];
  return true;
}

// Cuts v along the dim that has the factor, if one has: as its major part, and nowhere else.
bool Piecewise::Tie(const ShardingRule& rule, const std::vector<DimFactors>& dims, Value* v,
                    int factor, Ties& ties) const {
  int d = DimOfFactor(dims, factor);
  auto tied = std::find_if(ties.begin(), ties.end(), [&](const auto& t) { return t.first == v; });
  const int before = tied != ties.end() ? tied->second : DimOf(v);
  if (d < 0) return before < 0;
  auto at = static_cast<size_t>(d);
  for (size_t other = 0; other < dims.size(); ++other) {
    const auto& factors = dims[other].factors;
    if (other != at && std::find(factors.begin(), factors.end(), factor) != factors.end())
      return false;
  }
  if (dims[at].factors[0] != factor || !dims[at].segments.empty()) return false;
  const DimSharding& over_ranks = v->type.sharding.dims[at];
  if (pieces_ > 0 ? !over_ranks.segments.empty() : NumParts(over_ranks, graph_->mesh) != 1) {
    return false;
  }
  int64_t size = 1;
  for (int f : dims[at].factors) size *= rule.factors[f].size;
  if (size != v->type.shape[at]) return false;
  if (before >= 0) return before == d;
  if (HasWhole(v)) return false;
  ties.emplace_back(v, d);
  return true;
}

// Whether an op that was included when v was not cut reads or makes v.
bool Piecewise::HasWhole(const Value* v) const {
  return (v->producer && Contains(v->producer)) ||
         std::any_of(v->users.begin(), v->users.end(),
                     [&](const Op* user) { return Contains(user); });
}

namespace {

bool MayBeSummed(const Value* result) {
  bool chooses = result->producer->def->typed_result == result->index;
  return DTypeSize(result->type.dtype) >= 4 || (IsFloat(result->type.dtype) && chooses);
}

}  // namespace

bool Piecewise::Include(Op* op, bool sums) {
  if (Contains(op)) return true;
  if (!op->def->rule || op->def->communicates || op->def->side_effect || op->def->is_state)
    return false;
  ShardingRule rule = op->def->rule(*op);
  int factor = -1;
  for (size_t i = 0; i < op->operands.size(); ++i) {
    if (!FactorOf(rule.operands[i], op->operands[i], &factor)) return false;
  }
  for (size_t i = 0; i < op->results.size(); ++i) {
    if (!FactorOf(rule.results[i], op->results[i], &factor)) return false;
  }
  if (factor < 0) return false;
  const Factor& f = rule.factors[factor];
  if (f.kind != FactorKind::kPlain || f.placed || f.size == 0) return false;
  const int64_t units = units_ % f.size == 0 ? f.size : units_;
  if (f.size % units != 0 || (pieces_ > 0 && units % pieces_ != 0)) return false;
  Ties ties;
  for (int round : {1, 2}) {  // in the second what one use ties is known to the others
    for (size_t i = 0; i < op->operands.size(); ++i) {
      if (!Tie(rule, rule.operands[i], op->operands[i], factor, ties)) return false;
    }
    if (round == 1 && ties.empty()) break;
  }
  for (size_t i = 0; i < op->results.size(); ++i) {
    bool sum = DimOfFactor(rule.results[i], factor) < 0;
    bool may = sums && f.reduce == ReduceKind::kSum && MayBeSummed(op->results[i]);
    if (sum && !may) return false;
    if (!Tie(rule, rule.results[i], op->results[i], factor, ties)) return false;
  }
  units_ = units;
  for (const auto& [v, d] : ties) {
    dims_[v] = d;
    cut_.push_back(v);
  }
  in_.insert(op);
  ops_.insert(std::upper_bound(ops_.begin(), ops_.end(), op,
                               [](const Op* a, const Op* b) { return a->id < b->id; }),
              op);
  return true;
}

std::unordered_set<const Op*> Piecewise::Followers() const {
  std::unordered_set<const Op*> followers;
  for (const Op* op = ops_.front(); op != ops_.back(); op = graph_->Next(op)) {
    if (Contains(op)) continue;
    bool follows = std::any_of(op->operands.begin(), op->operands.end(), [&](const Value* v) {
      return v->producer && (Contains(v->producer) || followers.contains(v->producer));
    });
    if (follows) followers.insert(op);
  }
  return followers;
}

// A running sum in a half type would be rounded at every piece: such a result is f32 where its op
// can choose, and becomes what it was at the end.
bool Piecewise::IsWidened(const Value* v) const {
  return v->producer && Contains(v->producer) && DimOf(v) < 0 && DTypeSize(v->type.dtype) < 4;
}

// Of the value in a piece of so many units.
TensorType Piecewise::PieceType(const Value* v, int64_t units) const {
  TensorType type = v->type;
  if (IsWidened(v)) type.dtype = DType::kF32;
  int d = DimOf(v);
  if (d >= 0) type.shape[d] = type.shape[d] / units_ * units;
  return type;
}

// Of the op on the piece from unit `from` on, with results of these types.
Attributes Piecewise::AttributesOf(const Op& op, const std::vector<TensorType>& types,
                                   int64_t from) const {
  const int d = DimOf(op.result());
  const int64_t start = d < 0 ? 0 : op.out().shape[d] / units_ * from;
  Attributes attrs = AttributesOfPart(op, types, d, start);
  for (const Value* r : op.results) {
    if (IsWidened(r)) attrs.Set("out", std::string(DTypeName(DType::kF32)));
  }
  return attrs;
}

bool Piecewise::InfersPieces(const Op& op, int64_t units) const {
  std::vector<TensorType> operands, results;
  for (const Value* v : op.operands) operands.push_back(PieceType(v, units));
  for (const Value* r : op.results) results.push_back(PieceType(r, units));
  return Infers(*op.def, operands, AttributesOf(op, results, 0), results);
}

const Op* Piecewise::Unfit(int pieces) const {
  for (const Op* op : ops_) {
    for (int64_t units : {units_ / pieces, (units_ + pieces - 1) / pieces}) {
      if (!InfersPieces(*op, units)) return op;
    }
  }
  return nullptr;
}

bool Piecewise::Fits(int pieces) const {
  if (pieces < 1 || pieces > units_) return false;
  for (const Value* v : cut_) {
    if (v->type.shape[DimOf(v)] % units_ != 0) return false;
  }
  std::unordered_set<const Op*> followers = Followers();
  for (const Op* op : ops_) {
    for (const Value* v : op->operands) {
      if (!v->producer) continue;
      if (followers.contains(v->producer)) return false;
      if (Contains(v->producer) && DimOf(v) < 0) return false;
    }
  }
  return Unfit(pieces) == nullptr;
}

Value* Piecewise::Slice(Value* v, int64_t from, int64_t units, const Op& reader, Op* before) {
  TensorType type = PieceType(v, units);
  auto d = static_cast<size_t>(DimOf(v));
  int64_t size = v->type.shape[d] / units_;
  Ints starts(type.shape.size()), limits = type.shape, steps(type.shape.size(), 1);
  starts[d] = size * from;
  limits[d] = size * (from + units);
  return graph_
      ->AddOp(GetOpDef("slice"), {v}, {std::move(type)},
              {{"starts", starts}, {"limits", limits}, {"steps", steps}}, before, reader)
      ->result();
}

bool Piecewise::ReadOutside(const Value* v) const {
  return graph_->IsOutput(v) || std::any_of(v->users.begin(), v->users.end(),
                                            [&](const Op* user) { return !Contains(user); });
}

// The op that does nothing but add the value, which is no piece, to one that is there before the
// ops; or null.
Op* Piecewise::AddedTo(const Value* sum) const {
  Op* add = graph_->OnlyUser(sum);
  if (!add || DimOf(sum) >= 0 || IsWidened(sum)) return nullptr;
  if (add->name() != "add" || Contains(add) || add->in(0) != add->in(1)) return nullptr;
  const Op* other = add->operands[add->operands[0] == sum]->producer;
  return other && other->id < ops_.front()->id ? add : nullptr;
}

Op* Piecewise::AddPiece(const Op& op, int64_t from, int64_t units,
                        const std::function<Value*(Value*)>& piece_of, Op* before) {
  std::vector<Value*> operands;
  std::vector<TensorType> types;
  for (Value* v : op.operands) operands.push_back(DimOf(v) < 0 ? v : piece_of(v));
  for (const Value* r : op.results) types.push_back(PieceType(r, units));
  Attributes attrs = AttributesOf(op, types, from);
  Op* piece =
      graph_->AddOp(*op.def, std::move(operands), std::move(types), std::move(attrs), before, op);
  for (size_t i = 0; i < op.results.size(); ++i) {
    piece->results[i]->provenance = op.results[i]->provenance;
  }
  return piece;
}

Value* Piecewise::MakeFor(const Value* result, std::string_view op, std::vector<Value*> operands,
                          TensorType type, Attributes attrs, Op* before) {
  Op* made = graph_->AddOp(GetOpDef(op), std::move(operands), {std::move(type)}, std::move(attrs),
                           before, *result->producer);
  made->result()->provenance = result->provenance;
  return made->result();
}

void Piecewise::Apply(int pieces) {
  adds_.clear();
  made_.clear();
  std::unordered_set<const Op*> adds;
  for (const Op* op : ops_) {
    for (const Value* r : op->results) {
      if (Op* add = AddedTo(r)) adds.insert(adds_[r] = add);
    }
  }
  const std::unordered_set<const Op*> followers = Followers();
  std::vector<Op*> late;
  for (Op* op = ops_.front(); op != ops_.back(); op = graph_->Next(op)) {
    if (followers.contains(op) && !adds.contains(op)) late.push_back(op);
  }
  Op* end = graph_->Next(ops_.back());
  while (adds.contains(end)) end = graph_->Next(end);
  for (int64_t i = 0, from = 0; i < pieces; ++i) {
    const int64_t units = units_ / pieces + (i < units_ % pieces);
    MakePieces(from, units, end);
    from += units;
  }
  ReplaceResults(end);
  for (Op* op : late) graph_->MoveBefore(op, end);
  while (!ops_.empty()) {
    graph_->Erase(ops_.back());
    ops_.pop_back();
  }
}

// What the ops are on one piece.
void Piecewise::MakePieces(int64_t from, int64_t units, Op* before) {
  std::unordered_map<const Value*, Value*> pieces;
  for (const Op* op : ops_) {
    auto piece_of = [&](Value* v) {
      Value*& piece = pieces[v];
      if (!piece) piece = Slice(v, from, units, *op, before);
      return piece;
    };
    const Op* part = AddPiece(*op, from, units, piece_of, before);
    for (size_t i = 0; i < op->results.size(); ++i) {
      const Value* r = op->results[i];
      if (DimOf(r) >= 0) pieces[r] = part->results[i];
      Accumulate(r, part->results[i], before);
    }
  }
}

// Takes what one piece gives for the result.
void Piecewise::Accumulate(const Value* result, Value* piece, Op* before) {
  std::vector<Value*>& made = made_[result];
  if (auto add = adds_.find(result); add != adds_.end() && made.empty()) {
    made = {add->second->operands[add->second->operands[0] == result]};
  }
  if (DimOf(result) >= 0) {
    made.push_back(piece);
  } else if (made.empty()) {
    made = {piece};
  } else if (ReadOutside(result)) {
    made = {MakeFor(result, "add", {made[0], piece}, piece->type, {}, before)};
  }
}

void Piecewise::ReplaceResults(Op* before) {
  for (const Op* op : ops_) {
    for (Value* r : op->results) {
      if (!ReadOutside(r)) continue;
      Value* whole = made_[r][0];
      if (auto add = adds_.find(r); add != adds_.end()) {
        Op* done = add->second;
        whole->name = done->result()->name;
        graph_->ReplaceAllUses(done->result(), whole);
        graph_->Erase(done);
        continue;
      }
      if (DimOf(r) >= 0) {
        whole = MakeFor(r, "concat", made_[r], r->type, {{"axis", int64_t{DimOf(r)}}}, before);
      }
      if (IsWidened(r)) {
        whole = MakeFor(r, "cast", {whole}, r->type,
                        {{"to", std::string(DTypeName(r->type.dtype))}}, before);
      }
      whole->name = r->name;
      graph_->ReplaceAllUses(r, whole);
    }
  }
}

}  // namespace shardc
