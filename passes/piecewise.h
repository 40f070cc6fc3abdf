// Ops that run for one piece of a dim after the other.
#pragma once

#include <functional>
#include <string_view>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "ir/graph.h"
#include "ir/sharding_rule.h"

namespace shardc {

// A set of ops, and which dim of each value they read or make is cut: as the ops' sharding rules
// say, but in time, not over ranks. Op::id must number the graph's ops in order, from making the
// object to Apply.
class Piecewise {
 public:
  // `seed` is cut along `dim`. In so many equal pieces, each of which may be cut over ranks as the
  // whole is; or (0) in any number of them, on every rank for itself.
  Piecewise(Graph& graph, Value* seed, int dim, int pieces = 0);

  // Adds an op that reads or makes a value that is cut. False where it cannot run on pieces, and
  // then nothing has changed: it has no rule, moves data between ranks, must know its part's place
  // in the whole (Factor::placed), would need the whole of a value that is cut, has the dim cut
  // over ranks already, or, unless `sums`, makes a sum over the pieces.
  bool Include(Op* op, bool sums = true);

  bool Contains(const Op* op) const { return in_.contains(op); }
  const std::vector<Op*>& ops() const { return ops_; }
  // All values that are cut, those that the ops only read among them.
  const std::vector<Value*>& cut() const { return cut_; }
  int DimOf(const Value* v) const;  // -1: not cut
  // Whether an op outside reads the value, or it is an output.
  bool ReadOutside(const Value* v) const;
  // Ops outside that read, at some removes, what an op here makes, up to the last op here.
  std::unordered_set<const Op*> Followers() const;
  // At most so many pieces.
  int64_t units() const { return units_; }

  // Whether nothing but the ops themselves stands between them, no op reads a sum over all pieces,
  // and each op takes its operands' pieces.
  bool Fits(int pieces) const;
  // An op that does not take its operands' pieces, in so many; or null.
  const Op* Unfit(int pieces) const;

  // Makes the op once more, before `before`, on the units [from, from + units) alone; `piece_of`
  // gives what it reads of an operand that is cut. Sums in a half type are made in f32.
  Op* AddPiece(const Op& op, int64_t from, int64_t units,
               const std::function<Value*(Value*)>& piece_of, Op* before);
  // An op that helps to make one of the ops' results of its pieces, and belongs where that does.
  Value* MakeFor(const Value* result, std::string_view op, std::vector<Value*> operands,
                 TensorType type, Attributes attrs, Op* before);
  // Replaces the ops, which must fit: operands from outside are sliced, results that are cut are
  // put together where somebody reads the whole, others are summed in order, behind what is there
  // before and the sum is added to.
  void Apply(int pieces);

 private:
  using Ties = std::vector<std::pair<Value*, int>>;
  bool Tie(const ShardingRule& rule, const std::vector<DimFactors>& dims, Value* v, int factor,
           Ties& ties) const;
  bool HasWhole(const Value* v) const;
  bool FactorOf(const std::vector<DimFactors>& dims, const Value* v, int* factor) const;
  bool IsWidened(const Value* v) const;
  TensorType PieceType(const Value* v, int64_t units) const;
  Attributes AttributesOf(const Op& op, const std::vector<TensorType>& types, int64_t from) const;
  bool InfersPieces(const Op& op, int64_t units) const;
  Value* Slice(Value* v, int64_t from, int64_t units, const Op& reader, Op* before);
  Op* AddedTo(const Value* sum) const;
  void MakePieces(int64_t from, int64_t units, Op* before);
  void Accumulate(const Value* result, Value* piece, Op* before);
  void ReplaceResults(Op* before);

  Graph* graph_;
  int pieces_;
  int64_t units_;
  std::vector<Op*> ops_;
  std::unordered_set<const Op*> in_;
  std::vector<Value*> cut_;
  std::unordered_map<const Value*, int> dims_;
  std::unordered_map<const Value*, Op*> adds_;  // that Apply does with the pieces' sum
  // While applying: per result, its pieces so far, or the sum of them.
  std::unordered_map<const Value*, std::vector<Value*>> made_;
};

}  // namespace shardc
