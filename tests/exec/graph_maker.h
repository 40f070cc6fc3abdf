// Makes ops one by one, each run on data as it is made: what MakeRandomGraph stands on.
#pragma once

#include <map>
#include <optional>
#include <string_view>
#include <vector>

#include "ir/builder.h"
#include "tests/exec/random_graph.h"
#include "tests/ir/interpreter.h"

namespace shardc::testing {

constexpr int kMostDims = 6;  // of a value

HostTensor RandomTensor(Dice& dice, DType dtype, const Shape& shape, double low, double high);

class GraphMaker {
 public:
  GraphMaker(Dice& dice, const RandomGraphOptions& options, RandomModelGraph& model)
      : dice_(dice), options_(options), model_(model), b_(model.graph) {}

 protected:
  // What a value depends on.
  enum Reach { kNone = 0, kInput = 1, kParam = 2, kBoth = 3 };

  Shape RandomShape(int64_t low, int64_t high);
  // Puts a value among those that ops may read.
  void Know(Value* v, HostTensor data, bool per_example);
  const Shape& ShapeOf(const Value* v) const;
  int64_t Last(const Value* v) const;
  // Of the last ones more often.
  Value* PickOf(const std::vector<Value*>& values);
  // Mostly what is made of inputs and params.
  Value* Float();
  // Of at least so many dims; maybe made of one with fewer.
  Value* FloatOfRank(int least);
  Value* Any();
  Value* Input(const Shape& shape);
  Value* InputOf(HostTensor data);
  Value* Param(const Shape& shape);
  Value* Constant(HostTensor data);
  Value* Scalar(double value);
  // A value of this shape: one that is there, or a new one.
  Value* Leaf(const Shape& shape);
  Value* NewOrParam(const Shape& shape);
  // Integers in [low, limit).
  Value* Ids(const Shape& shape, int64_t low, int64_t limit);

  std::optional<std::vector<HostTensor>> Run(std::string_view op,
                                             const std::vector<HostTensor>& operands,
                                             const Attributes& attrs);
  static double StepOf(DType dtype);
  // Second differences are small, and integers stay.
  bool IsSmooth(std::string_view op, const std::vector<HostTensor>& operands,
                const Attributes& attrs, const std::vector<HostTensor>& results);
  // Whether row i of each result depends on rows i of the operands with a batch alone.
  bool TreatsExamplesAlone(std::string_view op, const std::vector<Value*>& operands,
                           const std::vector<HostTensor>& data, const Attributes& attrs,
                           const std::vector<HostTensor>& results);
  // What the op gives, if it can run on these operands and is well conditioned there.
  std::optional<std::vector<HostTensor>> Accepted(std::string_view op,
                                                  const std::vector<HostTensor>& operands,
                                                  const Attributes& attrs);
  // The op if it can run on these operands and is well conditioned there; else null.
  Op* Try(std::string_view op, std::vector<Value*> operands, Attributes attrs = {});
  // Its first result, or null.
  Value* Make(std::string_view op, std::vector<Value*> operands, Attributes attrs = {});
  // The value of what a state and its readers make, at the first step.
  const HostTensor& Evaluate(Value* v);

  Dice& dice_;
  const RandomGraphOptions& options_;
  RandomModelGraph& model_;
  Builder b_;
  Values data_;
  std::map<const Value*, bool> per_example_;
  std::map<const Value*, int> reach_;
  std::vector<Value*> floats_, ints_, bools_;
  std::vector<int64_t> sizes_;
  bool draws_ = true;  // dropout may be made
  int64_t batch_ = 0, params_ = 0, made_ = 0;
};

}  // namespace shardc::testing
