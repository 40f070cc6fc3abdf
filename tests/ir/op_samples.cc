#include "tests/ir/op_samples.h"

#include "ir/builder.h"

namespace shardc::testing {
namespace {

// splitmix64, as a number in [0, 1).
double Uniform(uint64_t seed, int64_t i) {
  uint64_t z = seed * 0x9e3779b97f4a7c15u + static_cast<uint64_t>(i + 1) * 0xd1342543de82ef95u;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
  return static_cast<double>((z ^ (z >> 31)) >> 11) * 0x1p-53;
}

template <typename Fn>
HostTensor Fill(DType dtype, Shape shape, Fn fn) {
  HostTensor t(dtype, std::move(shape));
  for (int64_t i = 0; i < t.num_elements(); ++i) t.SetDouble(i, fn(i));
  return t;
}

}  // namespace

HostTensor RandomFloats(Shape shape, uint64_t seed, double low, double high) {
  return Fill(DType::kF64, std::move(shape),
              [=](int64_t i) { return low + (high - low) * Uniform(seed, i); });
}

HostTensor RandomInts(Shape shape, uint64_t seed, int64_t low, int64_t high) {
  return Fill(DType::kI64, std::move(shape), [=](int64_t i) {
    return static_cast<double>(
        low + static_cast<int64_t>(Uniform(seed, i) * static_cast<double>(high - low)));
  });
}

HostTensor RandomBools(Shape shape, uint64_t seed) {
  return Fill(DType::kBool, std::move(shape), [=](int64_t i) { return Uniform(seed, i) < 0.6; });
}

HostTensor As(const HostTensor& t, DType dtype) {
  return Fill(dtype, t.shape(), [&](int64_t i) { return t.AsDouble(i); });
}

HostTensor FloatsAs(const HostTensor& t, DType dtype) {
  return IsFloat(t.dtype()) ? As(t, dtype) : t;
}

const std::vector<OpSample>& OpSamples() {
  static const std::vector<OpSample> samples = [] {
    std::vector<OpSample> all;
    AddElementwiseSamples(all);
    AddShapeSamples(all);
    AddReduceSamples(all);
    AddModelSamples(all);
    AddStepSamples(all);
    return all;
  }();
  return samples;
}

SampleGraph BuildSample(const OpSample& sample) {
  SampleGraph out;
  std::vector<Value*> inputs;
  for (size_t i = 0; i < sample.operands.size(); ++i) {
    const HostTensor& t = sample.operands[i];
    inputs.push_back(out.graph.AddInput(StrCat("x", i), TensorType(t.dtype(), t.shape())));
  }
  out.op = Builder(out.graph).Create(sample.op, std::move(inputs), sample.attrs);
  return out;
}

}  // namespace shardc::testing
