// Sample instances of every op, in f64 and with sign-varying data: what the machine tests of rules
// and gradients run on. A new op needs samples here, or completeness_test fails.
#pragma once

#include <string>
#include <vector>

#include "ir/attributes.h"
#include "ir/graph.h"
#include "ir/host_tensor.h"

namespace shardc::testing {

struct OpSample {
  std::string op;
  std::string what;  // what is special about it
  std::vector<HostTensor> operands;
  Attributes attrs;
  // Results that may get a gradient; empty: all float ones.
  std::vector<int> differentiable_results = {};
  std::vector<int> fixed_operands = {};  // float operands that may not depend on a parameter

  std::string Name() const { return op + (what.empty() ? "" : "/" + what); }
};

const std::vector<OpSample>& OpSamples();

// The sample as a graph: one input per operand, one op.
struct SampleGraph {
  Graph graph;
  Op* op = nullptr;
};
SampleGraph BuildSample(const OpSample& sample);

// Deterministic uniform data.
HostTensor RandomFloats(Shape shape, uint64_t seed, double low = -1.5, double high = 1.5);
HostTensor RandomInts(Shape shape, uint64_t seed, int64_t low, int64_t high);  // [low, high), i64
HostTensor RandomBools(Shape shape, uint64_t seed);
// The same numbers as another type.
HostTensor As(const HostTensor& t, DType dtype);
// Floats as `dtype`; others stay.
HostTensor FloatsAs(const HostTensor& t, DType dtype);

// Adds to a list of samples.
class SampleAdder {
 public:
  explicit SampleAdder(std::vector<OpSample>& samples) : samples_(samples) {}
  void operator()(std::string op, std::string what, std::vector<HostTensor> operands,
                  Attributes attrs = {}, std::vector<int> differentiable_results = {},
                  std::vector<int> fixed_operands = {}) {
    samples_.push_back({std::move(op), std::move(what), std::move(operands), std::move(attrs),
                        std::move(differentiable_results), std::move(fixed_operands)});
  }

 private:
  std::vector<OpSample>& samples_;
};

// One file per group of families adds its samples.
void AddElementwiseSamples(std::vector<OpSample>& samples);
void AddShapeSamples(std::vector<OpSample>& samples);
void AddReduceSamples(std::vector<OpSample>& samples);  // reduce, index, constant
void AddModelSamples(std::vector<OpSample>& samples);   // matmul, norm, attention, loss, fused
void AddStepSamples(std::vector<OpSample>& samples);    // optimizer, distribution

}  // namespace shardc::testing
