// Experts of which each has weights of its own compute the tokens that are theirs alone: what they
// make of the others is multiplied with a share that is zero, or not taken.
#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <vector>

#include "frontend/recover/patterns.h"
#include "ir/op_def.h"

namespace shardc::recover {
namespace {

// The places where a share that is not zero may be: of where(mask, share, 0), or of the sum of it
// over a dim.
struct Shares {
  Value* mask = nullptr;
  Shape apart;        // of the mask
  int64_t axis = -1;  // of it that is summed over; -1: none
};

std::optional<Shares> SharesOf(Value* v) {
  Shares shares;
  v = Unshaped(v);
  if (const Op* sum = ProducedBy(v, "reduce_sum")) {
    const Shape& from = sum->in(0).shape;
    const Ints& axes = sum->attrs.IntList("axes");
    if (axes.size() != 1) return std::nullopt;
    shares.axis = AxisOf({{"axis", axes[0]}}, static_cast<int>(from.size()));
    shares.apart = from;
    v = Unshaped(sum->operands[0]);
  }
  const Op* where = ProducedBy(v, "where");
  if (where == nullptr || !IsSplat(where->operands[2], 0) ||
      where->in(0).num_elements() != where->out().num_elements()) {
    return std::nullopt;
  }
  shares.mask = Unshaped(where->operands[0]);
  if (shares.apart.empty()) shares.apart = where->out().shape;
  return shares;
}

// bool [tokens]: which have a share.
Value* AnyOf(Builder& b, const Shares& shares) {
  Value* mask = b.Reshape(shares.mask, shares.apart);
  if (shares.axis >= 0) {
    Value* count = b.ReduceSum(b.Cast(mask, DType::kF32), {shares.axis});
    mask = b.Make("greater", {count, b.Scalar(DType::kF32, 0)});
  }
  return b.Reshape(mask, {mask->type.num_elements()});
}

// How many of a model's experts are a token's, where they are those of the largest scores.
std::optional<double> DensityOf(const Value* mask) {
  for (int steps = 0; mask->producer != nullptr && steps < 16; ++steps) {
    const Op& op = *mask->producer;
    if (op.name() == "top_k") {
      const int64_t of = op.in(0).shape[AxisOf(op.attrs, op.in(0).rank())];
      return static_cast<double>(op.attrs.Int("k")) / static_cast<double>(of);
    }
    if (op.name() == "reduce_min" && IsInteger(op.out().dtype)) {  // the first of the largest
      return static_cast<double>(op.out().num_elements()) /
             static_cast<double>(op.in(0).num_elements());
    }
    if (op.operands.empty()) break;
    mask = op.operands[0];
  }
  return std::nullopt;
}

// `made`, of whose rows those that are not chosen count for nothing at `end`, and what makes it.
class Chain {
 public:
  Chain(const Graph& graph, const Op* end, Value* made, int64_t tokens)
      : graph_(graph), end_(end), made_(made), tokens_(tokens) {}

  // The products with weights behind it, up to those that something else reads, too: `end` itself
  // in another place, as what takes y where f(y) is not chosen.
  std::vector<Op*> Products() {
    std::vector<Op*> products;
    std::set<const Op*> seen;
    std::vector<Value*> open = {made_};
    while (!open.empty()) {
      Value* v = open.back();
      Op* op = v->producer;
      open.pop_back();
      if (!op || !OnlyReads(v) || !Holds(*op) || !seen.insert(op).second) continue;
      if (OneOf(op->name(), {"matmul", "matmul_nt"})) products.push_back(op);
      open.insert(open.end(), op->operands.begin(), op->operands.end());
    }
    return products;
  }

 private:
  bool OnlyReads(const Value* v) {
    if (auto known = only_.find(v); known != only_.end()) return known->second;
    bool only = !v->users.empty() && !graph_.IsOutput(v);
    for (const Op* user : v->users) {
      only = only && (user == end_ ? v == made_ && std::ranges::count(end_->operands, v) == 1
                                   : (user->operands[0] == v || !IsProduct(user)) && Holds(*user) &&
                                         OnlyReads(user->result()));
    }
    return only_[v] = only;
  }
  // Whether the op makes each row of the same row of what it reads, and of zeros no infinity, nor
  // does its gradient.
  bool Holds(const Op& op) const {
    if (op.results.size() != 1 || !IsRows(*op.result())) return false;
    if (IsProduct(&op)) return op.operands.size() == 2 && op.in(1).rank() == 2;
    if (OneOf(op.name(), {"div", "log", "pow", "sqrt", "rsqrt", "reciprocal"})) return false;
    return op.def->elementwise || op.name() == "reshape";
  }
  bool IsRows(const Value& v) const {
    return v.type.rank() > 1 && v.type.num_elements() == tokens_ * v.type.shape.back();
  }

  const Graph& graph_;
  const Op* end_;
  Value* made_;
  const int64_t tokens_;
  std::map<const Value*, bool> only_;
};

// Makes the products behind `made` those of chosen rows; false where there are none.
bool ChooseRows(Graph& graph, const Op* end, Value* made, const Shares& shares, int64_t tokens) {
  if (made->type.shape != end->out().shape || made->type.rank() < 2 ||
      made->type.num_elements() != tokens * made->type.shape.back()) {
    return false;
  }
  const std::optional<double> density = DensityOf(shares.mask);
  if (!density) return false;
  std::vector<Op*> products = Chain(graph, end, made, tokens).Products();
  const Op* mask = shares.mask->producer;
  std::erase_if(products, [&](const Op* op) { return mask != nullptr && op->id <= mask->id; });
  if (products.empty()) return false;
  Op* first = *std::ranges::min_element(products, {}, &Op::id);
  Builder b(graph, first, *first);
  Value* any = AnyOf(b, shares);
  for (Op* op : products) {
    Builder at(graph, op, *op);
    Shape rows = op->out().shape;
    rows.pop_back();
    Value* of_rows =
        at.Make(MultipliesByTransposed(op) ? "matmul_rows_nt" : "matmul_rows",
                {op->operands[0], op->operands[1], at.Reshape(any, rows)}, {{"density", *density}});
    of_rows->name = op->result()->name;
    graph.ReplaceAllUses(op->result(), of_rows);
    graph.Erase(op);
  }
  return true;
}

// Whether the value has one number for each row of what it is combined with.
bool IsOfRows(const Value* v, const Shape& with) {
  const Shape& shape = v->type.shape;
  return shape.size() == with.size() && shape.back() == 1 &&
         std::equal(shape.begin(), shape.end() - 1, with.begin());
}

bool ChooseRows(Graph& graph, const Op* end) {
  if (end->out().rank() < 2) return false;
  if (end->name() == "where") {
    if (!IsOfRows(end->operands[0], end->out().shape)) return false;
    Value* mask = Unshaped(end->operands[0]);
    const int64_t tokens = mask->type.num_elements();
    return ChooseRows(graph, end, end->operands[1], {mask, {tokens}, -1}, tokens);
  }
  for (const int i : {0, 1}) {
    Value* share = end->operands[1 - i];
    if (!IsOfRows(share, end->out().shape)) continue;
    const std::optional<Shares> shares = SharesOf(share);
    if (!shares) continue;
    if (ChooseRows(graph, end, end->operands[i], *shares, share->type.num_elements())) return true;
  }
  return false;
}

}  // namespace

bool ChooseRowsOfExperts(Graph& graph) {
  graph.NumberOps();
  std::vector<const Op*> ends;
  for (const auto& op : graph.ops()) {
    if (OneOf(op->name(), {"mul", "where"})) ends.push_back(op.get());
  }
  bool changed = false;
  for (const Op* op : ends) changed |= ChooseRows(graph, op);
  if (changed) graph.EraseDead();
  return changed;
}

}  // namespace shardc::recover
