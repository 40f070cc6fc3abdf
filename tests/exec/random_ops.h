// The ops of random graphs.
#pragma once

#include <string>
#include <vector>

#include "tests/exec/graph_maker.h"

namespace shardc::testing {

class RandomOps : public GraphMaker {
 public:
  using GraphMaker::GraphMaker;

 protected:
  using Maker = void (RandomOps::*)();

  // Makes one, or a few that belong together; or none, where they did not fit.
  int64_t RandomDim(const Value* v);
  // The axis, or the same counted from the end.
  int64_t MaybeNegative(const Value* v, int64_t axis);
  Shape Reshaped(Shape shape);
  void Reshape();
  void Transpose();
  void Slice();
  void Concat();
  // What was one is put together again in another order, or along another dim.
  void SpreadConcat();
  void Split();
  void Pad();
  void Broadcast();
  void Reduce();
  void SumSquares();
  void Cumsum();
  void Softmax();
  Value* NormOf(Value* v);
  void Norm();
  // Over several trailing dims, as an export writes it.
  void TrailingNorm();
  // Times what keeps a sum over k terms small.
  Value* Tempered(Value* v, int64_t k);
  Value* LinearOf(Value* v, int64_t columns);
  int64_t RandomColumns();
  void Linear();
  void Batched();
  void Tn();
  void Rows();
  std::vector<std::string> ElementwiseOps(int operands);
  void Unary();
  Shape BroadcastableTo(Shape shape);
  void Binary();
  void Residual();
  void Compare();
  void Where();
  void Cast();
  void Embedding();
  void Gather();
  void GatherNd();
  void Scatter();
  void TopK();
  void CrossEntropy();
  // A dim becomes heads, which move to the front.
  void Heads();
  void Attention();
  void Dropout();
  void Step();
};

}  // namespace shardc::testing
