// Experts of which each has weights of its own compute the tokens that are theirs alone: what they
// make of a token is multiplied with its share, which is zero for the others.
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

Value* Behind(Value* v) {
  while (v->producer && v->producer->name() == "reshape") v = v->producer->operands[0];
  return v;
}

std::optional<Shares> SharesOf(Value* v) {
  Shares shares;
  v = Behind(v);
  if (const Op* sum = ProducedBy(v, "reduce_sum")) {
    const Shape& from = sum->in(0).shape;
    const Ints& axes = sum->attrs.IntList("axes");
    if (axes.size() != 1) return std::nullopt;
    shares.axis = AxisOf({{"axis", axes[0]}}, static_cast<int>(from.size()));
    shares.apart = from;
    v = Behind(sum->operands[0]);
  }
  const Op* where = ProducedBy(v, "where");
  if (where == nullptr || !IsSplat(where->operands[2], 0) ||
      where->in(0).num_elements() != where->out().num_elements()) {
    return std::nullopt;
  }
  shares.mask = Behind(where->operands[0]);
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
    if (op.operands.empty()) break;
    mask = op.operands[0];
  }
  return std::nullopt;
}

// Whether nothing but what makes rows of rows for the product `end` reads the value, directly or
// not.
class Chain {
 public:
  Chain(const Op* end, int64_t tokens) : end_(end), tokens_(tokens) {}

  bool OnlyReads(const Value* v) {
    return std::ranges::all_of(v->users,
                               [&](const Op* user) { return user == end_ || Holds(*user); });
  }

 private:
  bool Holds(const Op& op) {
    auto [known, is_new] = holds_.try_emplace(&op, false);
    if (!is_new) return known->second;
    const bool holds = op.results.size() == 1 && IsRows(*op.result()) &&
                       (op.def->elementwise || op.name() == "reshape" || IsProduct(&op)) &&
                       OnlyReads(op.result());
    return holds_[&op] = holds;
  }
  bool IsRows(const Value& v) const {
    return v.type.rank() > 1 && v.type.num_elements() == tokens_ * v.type.shape.back();
  }

  const Op* end_;
  const int64_t tokens_;
  std::map<const Op*, bool> holds_;
};

// The products of rows with weights behind a value, up to those that others read, too.
std::vector<Op*> ProductsBehind(const Graph& graph, Value* made, Chain& chain) {
  std::vector<Op*> products;
  std::set<const Op*> seen;
  std::vector<Value*> open = {made};
  while (!open.empty()) {
    Op* op = open.back()->producer;
    const bool read = op && !graph.IsOutput(open.back()) && chain.OnlyReads(open.back());
    open.pop_back();
    if (!read || !seen.insert(op).second) continue;
    const bool product = OneOf(op->name(), {"matmul", "matmul_nt"});
    if (product && (op->operands.size() > 2 || op->in(1).rank() != 2)) continue;
    if (product) products.push_back(op);
    if (product || op->def->elementwise || op->name() == "reshape") {
      open.insert(open.end(), op->operands.begin(), op->operands.end());
    }
  }
  return products;
}

// Makes the products of what is multiplied with shares those of chosen rows; false where none are.
bool ChooseRows(Graph& graph, Op* end) {
  for (const int i : {0, 1}) {
    Value *made = end->operands[i], *share = end->operands[1 - i];
    const std::optional<Shares> shares = SharesOf(share);
    const int64_t tokens = share->type.num_elements();
    if (!shares || end->in(i).shape != end->out().shape || made->type.rank() < 2) continue;
    if (made->type.num_elements() != tokens * made->type.shape.back()) continue;
    Chain chain(end, tokens);
    std::vector<Op*> products = ProductsBehind(graph, made, chain);
    const Op* mask = shares->mask->producer;
    std::erase_if(products, [&](const Op* op) { return mask != nullptr && op->id <= mask->id; });
    if (products.empty()) continue;
    Op* first = *std::ranges::min_element(products, {}, &Op::id);
    Builder b(graph, first, *first);
    Value* any = AnyOf(b, *shares);
    Attributes attrs;
    if (const auto density = DensityOf(shares->mask)) attrs.Set("density", *density);
    for (Op* op : products) {
      Builder at(graph, op, *op);
      Shape rows = op->out().shape;
      rows.pop_back();
      Value* made_of_rows =
          at.Make(MultipliesByTransposed(op) ? "matmul_rows_nt" : "matmul_rows",
                  {op->operands[0], op->operands[1], at.Reshape(any, rows)}, attrs);
      made_of_rows->name = op->result()->name;
      graph.ReplaceAllUses(op->result(), made_of_rows);
      graph.Erase(op);
    }
    return true;
  }
  return false;
}

}  // namespace

bool ChooseRowsOfExperts(Graph& graph) {
  graph.NumberOps();
  std::vector<Op*> products;
  for (const auto& op : graph.ops()) {
    if (op->name() == "mul") products.push_back(op.get());
  }
  bool changed = false;
  for (Op* op : products) changed |= ChooseRows(graph, op);
  if (changed) graph.EraseDead();
  return changed;
}

}  // namespace shardc::recover
