#include "frontend/recover/linears.h"

#include <algorithm>
#include <numeric>

#include "frontend/recover/match.h"
#include "ir/op_def.h"

namespace shardc::recover {
namespace {

// The dims of `to` that have the factors of these dims of `from`, and no others; empty when there
// are none. With `majors` one may have others that are major to them, which are added to it.
Ints SameFactors(const std::vector<DimFactors>& from, const Ints& dims,
                 const std::vector<DimFactors>& to, std::vector<int>* majors = nullptr) {
  std::vector<int> factors;
  for (int64_t d : dims) {
    const auto& more = from[d].factors;
    factors.insert(factors.end(), more.begin(), more.end());
  }
  Ints same;
  for (auto at = factors.begin(); at != factors.end();) {
    const int d = DimOfFactor(to, *at);
    if (d < 0) return {};
    const auto& all = to[d].factors;
    const auto own = std::ranges::find(all, *at);
    if (own != all.begin() && !majors) return {};
    if (std::distance(at, factors.end()) < std::distance(own, all.end()) ||
        !std::equal(own, all.end(), at)) {
      return {};
    }
    if (own != all.begin()) majors->insert(majors->end(), all.begin(), own);
    same.push_back(d);
    at += std::distance(own, all.end());
  }
  return same;
}

// Dims of a parameter, for each of several lists of dims of what is made of it.
struct Found {
  Op* param = nullptr;  // null: there is none with all of them
  std::vector<Ints> lists;
  // The dims in list number `parted` have so many parts, one behind the other, of which the list
  // means one, or each: [experts * out, in] that is viewed as [experts, out, in].
  int64_t parts = 1;
  size_t parted = 0;
};

// Goes from v to operand 0 of the op that makes v from it.
void GoBefore(const Value* v, Found& found) {
  const Op& op = *v->producer;
  if (op.def->elementwise) return;
  const ShardingRule rule = op.def->rule(op);
  for (size_t i = 0; i < found.lists.size(); ++i) {
    Ints& dims = found.lists[i];
    std::vector<int> majors;
    dims = SameFactors(rule.results[v->index], dims, rule.operands[0], &majors);
    if (majors.empty()) continue;
    if (found.parts > 1) dims.clear();
    found.parted = i;
    for (int factor : majors) found.parts *= rule.factors[factor].size;
  }
}

// Whether v is computed, in few steps, from parameters and constants alone.
bool IsOfParams(const Value* v) {
  constexpr size_t kMaxValues = 64;
  std::vector<const Value*> found = {v};
  for (size_t i = 0; i < found.size(); ++i) {
    const Op* op = found[i]->producer;
    if (op == nullptr || found.size() > kMaxValues) return false;
    for (const Value* operand : op->operands) {
      if (std::ranges::find(found, operand) == found.end()) found.push_back(operand);
    }
  }
  return true;
}

// The parameter that v is but for its order, its parts and its type, and which of its dims are
// those of v, for each of several lists of them. So are weights that a model scales, masks,
// normalises or rounds before it uses them, and those with an update of low rank: of the parameters
// the first that has all of the elements.
Found FindParam(const Value* v, Found found, int depth = 0) {
  auto lost = [&] { return std::ranges::any_of(found.lists, &Ints::empty); };
  while (!lost() && Arranges(v->producer)) {
    GoBefore(v, found);
    v = v->producer->operands[0];
  }
  if (lost() || depth > 16) return {};
  found.param = ProducedBy(v, "param");
  if (found.param) return found;
  const Op* op = v->producer;
  if (op == nullptr || !op->def->elementwise || !IsOfParams(v)) return {};
  for (const Value* operand : op->operands) {
    if (operand->type.shape != v->type.shape) continue;
    Found of_operand = FindParam(operand, found, depth + 1);
    if (of_operand.param) return of_operand;
  }
  return {};
}

ParamDims DimsOfParam(const Value* v, Ints dims) {
  Found found = FindParam(v, {nullptr, {std::move(dims)}});
  if (found.param == nullptr) return {};
  return {found.param, std::move(found.lists[0]), found.parts};
}

bool IsOneMatrixOfEach(const Op* param, const Linear& linear) {
  const Shape& shape = param->out().shape;
  return shape.size() == 3 && linear.rows.size() == 1 && linear.columns.size() == 1 &&
         linear.rows[0] != 0 && linear.columns[0] != 0 &&
         std::all_of(shape.begin(), shape.end(), [](int64_t n) { return n > 1; });
}

// Whether all matrices of v lie one behind the other along a dim of a parameter that is one.
bool IsStack(const Value* v, const Found& found) {
  const Shape& shape = v->type.shape;
  return found.param->out().rank() == 2 && found.parts > 1 &&
         found.parts == NumElements(Shape(shape.begin(), shape.end() - 2));
}

// Finds the weight; false when there is none.
bool FindWeight(Linear& linear) {
  const Value* v = linear.matmul->operands[1];
  const int64_t rank = v->type.rank();
  const bool nt = MultipliesByTransposed(linear.matmul);
  Found found = FindParam(v, {nullptr, {{rank - (nt ? 1 : 2)}, {rank - (nt ? 2 : 1)}}});
  if (found.param == nullptr) return false;
  linear.weight = found.param;
  linear.rows = std::move(found.lists[0]);
  linear.columns = std::move(found.lists[1]);
  const Shape& shape = v->type.shape;
  linear.experts = std::any_of(shape.begin(), shape.end() - 2, [](int64_t n) { return n > 1; });
  if (linear.experts && !IsStack(v, found))
    return found.parts == 1 && IsOneMatrixOfEach(linear.weight, linear);
  const Ints& parted = found.parted == 0 ? linear.rows : linear.columns;
  if (found.parts > 1 && linear.weight->out().rank() == 2)
    linear.stacked = {parted[0], found.parts};
  return true;
}

// A parameter with a vector of n elements for each expert, from which v comes.
ParamDims ExpertsBias(const Value* v, int64_t experts, int64_t n) {
  Op* param = ProducedBy(ArrangedFrom(v), "param");
  if (param == nullptr || param->out().num_elements() != experts * n) return {};
  const Shape& shape = param->out().shape;
  if (shape.size() == 1) return {param, {0}, experts};
  const bool each = shape[0] == experts && shape.back() == n;
  return each ? ParamDims{param, {param->out().rank() - 1}} : ParamDims();
}

// A parameter that v, which is added to a value with the columns in these dims, has a number from
// for each column, and for nothing else.
ParamDims VectorOfColumns(const Value* v, const TensorType& to, Ints dims) {
  int64_t columns = 1;
  for (int64_t& d : dims) {
    columns *= to.shape[d];
    d -= to.rank() - v->type.rank();
  }
  if (v->type.num_elements() != columns || dims.front() < 0) return {};
  return DimsOfParam(v, std::move(dims));
}

// The parameters of a vector of n elements that is put together of pieces of them and constants: q
// and v may have biases, and k none (as EVA's). Empty where it is something else.
std::vector<Op*> PiecesOfVector(const Value* v, int64_t n) {
  std::vector<Op*> params;
  const Op* all = ProducedBy(v, "concat");
  if (all == nullptr || v->type.rank() != 1 || v->type.shape[0] != n) return params;
  for (const Value* piece : all->operands) {
    if (ConstantOf(piece)) continue;
    Op* param = DimsOfParam(piece, {0}).param;
    if (param == nullptr || param->out().rank() != 1) return {};
    if (std::ranges::find(params, param) == params.end()) params.push_back(param);
  }
  return params;
}

// Looks for a bias behind the product, also where its columns are taken apart first.
void FindBias(const Graph& graph, Linear& linear) {
  Value* at = linear.matmul->result();
  Ints dims = {at->type.rank() - 1};
  for (Op* user = graph.OnlyUser(at); user && !dims.empty(); user = graph.OnlyUser(at)) {
    if (OneOf(user->name(), {"reshape", "transpose"})) {
      const ShardingRule rule = user->def->rule(*user);
      dims = SameFactors(rule.operands[0], dims, rule.results[0]);
      at = user->result();
      continue;
    }
    for (int i = 0; user->name() == "add" && i < 2; ++i) {
      const Value* v = user->operands[i];
      if (v == at) continue;
      ParamDims bias = linear.experts ? ExpertsBias(v, NumExperts(linear), at->type.shape.back())
                                      : VectorOfColumns(v, at->type, dims);
      if (bias.param == nullptr && dims == Ints{at->type.rank() - 1})
        linear.bias_pieces = PiecesOfVector(v, at->type.shape.back());
      if (bias.param == nullptr && linear.bias_pieces.empty()) continue;
      linear.bias = std::move(bias);
      linear.out = user->result();
    }
    return;
  }
}

}  // namespace

int64_t NumExperts(const Linear& linear) {
  return linear.stacked.empty() ? linear.weight->out().shape[0] : linear.stacked[1];
}

Op* ParamBehind(const Value* v) {
  if (Op* cast = ProducedBy(v, "cast")) v = cast->operands[0];
  return ProducedBy(v, "param");
}

Op* BiasBehind(const Value* v) {
  return v->type.rank() == 1 ? DimsOfParam(v, {0}).param : ParamBehind(v);
}

std::vector<Linear> FindLinears(const Graph& graph) {
  std::vector<Linear> linears;
  for (const auto& op : graph.ops()) {
    if (!IsProduct(op.get())) continue;
    Linear linear;
    linear.matmul = op.get();
    linear.out = op->result();
    if (!FindWeight(linear)) continue;
    FindBias(graph, linear);
    linears.push_back(std::move(linear));
  }
  return linears;
}

}  // namespace shardc::recover
