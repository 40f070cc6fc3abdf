// Creates ops with inference and checks, at an insertion point.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "ir/graph.h"

namespace shardc {

// Shorthands for ops that a builder and an importer, which folds them, make alike.
class OpMaker {
 public:
  // The only result of an op.
  virtual Value* Make(std::string_view op, std::vector<Value*> operands, Attributes attrs = {}) = 0;

  Value* Constant(HostTensor value);
  // A scalar constant of a float or integer type.
  Value* Scalar(DType dtype, double value);
  // `a` itself where there is nothing to do.
  Value* Cast(Value* a, DType to);
  Value* Reshape(Value* a, Shape shape);
  Value* Transpose(Value* a, Ints perm);
  Value* BroadcastTo(Value* a, Shape shape);
  // The elements from, from + step, ... before `to` of one dim.
  Value* Slice(Value* a, int dim, int64_t from, int64_t to, int64_t step = 1);

 protected:
  ~OpMaker() = default;
};

// What the builder belongs with, and its phase, are given to every op that is created.
class Builder : public OpMaker, public Belonging {
 public:
  // Inserts before `before` (null: at the end).
  explicit Builder(Graph& graph, Op* before = nullptr) : graph_(graph), before_(before) {}
  // The same, in the place of `like`: with its phase, belonging where it does.
  Builder(Graph& graph, Op* before, const Op& like)
      : Belonging(like), phase(like.phase), graph_(graph), before_(before) {}

  Graph& graph() { return graph_; }
  void SetInsertionPoint(Op* before) { before_ = before; }
  Phase phase = Phase::kForward;

  // Infers the result types; throws Diagnostic E1101 when the operands do not fit.
  Op* Create(std::string_view op, std::vector<Value*> operands, Attributes attrs = {});
  Value* Make(std::string_view op, std::vector<Value*> operands, Attributes attrs = {}) override {
    return Create(op, std::move(operands), std::move(attrs))->result();
  }

  Value* Param(std::string name, DType dtype, Shape shape, Attributes more = {});
  // A persistent tensor with the type and sharding of `like`, and its first value.
  Value* State(std::string name, const TensorType& like, double init = 0);
  void Update(std::string state, Value* value);

  Value* Add(Value* a, Value* b) { return Make("add", {a, b}); }
  Value* Sub(Value* a, Value* b) { return Make("sub", {a, b}); }
  Value* Mul(Value* a, Value* b) { return Make("mul", {a, b}); }
  Value* Div(Value* a, Value* b) { return Make("div", {a, b}); }
  Value* Neg(Value* a) { return Make("neg", {a}); }
  Value* ReduceSum(Value* a, Ints axes, bool keepdims = false);
  Value* ReduceMax(Value* a, Ints axes, bool keepdims = false);
  // Sums over the dims that broadcasting added or stretched, so that the result has `shape`.
  Value* SumTo(Value* a, const Shape& shape);
  Value* Matmul(Value* a, Value* b) { return Make("matmul", {a, b}); }

 private:
  Op* Insert(const OpDef& def, std::vector<Value*> operands, std::vector<TensorType> results,
             Attributes attrs);

  Graph& graph_;
  Op* before_;
};

}  // namespace shardc
