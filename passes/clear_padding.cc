#include "passes/clear_padding.h"

#include <unordered_map>
#include <unordered_set>

#include "ir/op_def.h"
#include "passes/layout.h"

namespace shardc {
namespace {

// Values whose padding is zero on every rank (or that have none).
class CleanValues {
 public:
  explicit CleanValues(const Mesh& mesh) : mesh_(mesh) {}

  bool Contains(const Value* v) const {
    return !HasPadding(v->type, mesh_) || !v->producer || clean_.contains(v);
  }

  void Learn(const Op& op) {
    bool clean = op.def->is_state || op.name() == "zero_padding";
    bool inputs = true;
    for (const Value* v : op.operands) inputs = inputs && Contains(v);
    // Collectives and slices move and sum the padding of other dims like anything else; that of the
    // dim they cut is packed as zero.
    if (KeepsZeroPadding(op) || op.def->communicates) clean = clean || inputs;
    if (!clean) return;
    for (const Value* r : op.results) clean_.insert(r);
  }

 private:
  const Mesh& mesh_;
  std::unordered_set<const Value*> clean_;
};

// Whether the op sums over a factor that is padded in this operand.
bool SumsPadding(const Op& op, const ShardingRule& rule, size_t operand, const Mesh& mesh) {
  const TensorType& type = op.in(static_cast<int>(operand));
  for (int d = 0; d < type.rank(); ++d) {
    if (!HasPadding(type.shape[d], type.sharding.dims[d], mesh)) continue;
    for (int f : rule.operands[operand][d].factors) {
      for (const auto& result : rule.results) {
        if (DimOfFactor(result, f) < 0) return true;
      }
    }
  }
  return false;
}

// Whether a state takes a result of the op: its padding has to be zero at the next step too.
bool UpdatesState(const Op& op) {
  for (const Value* r : op.results) {
    for (const Op* user : r->users) {
      if (user->def->side_effect) return true;
    }
  }
  return false;
}

}  // namespace

void ClearPadding(Graph& graph) {
  CleanValues clean(graph.mesh);
  std::unordered_map<Value*, Value*> cleared;
  auto clear = [&](Op* op, size_t operand) {
    Value* v = op->operands[operand];
    Value*& zeroed = cleared[v];
    if (!zeroed) {
      Op* z = graph.AddOp(GetOpDef("zero_padding"), {v}, {v->type}, {}, op, *op);
      clean.Learn(*z);
      zeroed = z->result();
    }
    graph.SetOperand(op, static_cast<int>(operand), zeroed);
  };
  for (auto it = graph.ops().begin(); it != graph.ops().end(); ++it) {
    Op* op = it->get();
    std::vector<size_t> unclean;
    for (size_t i = 0; i < op->operands.size(); ++i) {
      if (!clean.Contains(op->operands[i])) unclean.push_back(i);
    }
    if (op->def->side_effect || (KeepsZeroPadding(*op) && UpdatesState(*op))) {
      for (size_t i : unclean) clear(op, i);
    } else if (op->def->rule && !op->def->ignores_padding && !unclean.empty()) {
      ShardingRule rule = op->def->rule(*op);
      for (size_t i : unclean) {
        if (SumsPadding(*op, rule, i, graph.mesh)) clear(op, i);
      }
    }
    clean.Learn(*op);
  }
}

}  // namespace shardc
