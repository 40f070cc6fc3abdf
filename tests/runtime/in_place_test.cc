// Where an op says that a result may be made in an operand's memory, its kernels give the same bits
// there as elsewhere: every sample of every op, in f64, f32 and bf16.
#include <gtest/gtest.h>

#include <cstring>

#include "ir/builder.h"
#include "ir/op_def.h"
#include "runtime/kernel.h"
#include "tests/ir/op_samples.h"

namespace shardc::testing {
namespace {

HostTensor As(const HostTensor& t, DType dtype) {
  if (!IsFloat(t.dtype())) return t;
  HostTensor out(dtype, t.shape());
  for (int64_t i = 0; i < t.num_elements(); ++i) out.SetDouble(i, t.AsDouble(i));
  return out;
}

// One op on tensors of its own, with an operand of one buffer per tensor.
class OneOp {
 public:
  explicit OneOp(const OpSample& sample) : graph_(BuildSample(sample)), operands_(sample.operands) {
    for (const Value* v : graph_.op->operands) types_.push_back(v->type);
    for (const Value* v : graph_.op->results) types_.push_back(v->type);
    for (size_t i = 0; i < types_.size(); ++i) {
      Buffer b;
      b.type = types_[i];
      b.local_shape = types_[i].shape;
      b.bytes = types_[i].bytes();
      program_.buffers.push_back(b);
      (i < operands_.size() ? instruction_.operands : instruction_.results)
          .push_back(static_cast<int>(i));
    }
    instruction_.op = sample.op;
    instruction_.attrs = graph_.op->attrs;
  }

  const std::vector<TensorType>& types() const { return types_; }
  size_t num_operands() const { return operands_.size(); }

  // Result `result` in the memory of operand `operand` (-1: all apart). Empty: there is no kernel.
  std::vector<HostTensor> Run(bool reference, int operand, int result) const {
    std::vector<HostTensor> memory = operands_;
    for (size_t i = operands_.size(); i < types_.size(); ++i) {
      memory.emplace_back(types_[i].dtype, types_[i].shape);
      std::memset(memory.back().raw(), 0x33, static_cast<size_t>(memory.back().bytes()));
    }
    auto place = [&](size_t r) {
      bool shared = operand >= 0 && r == static_cast<size_t>(result);
      return shared ? static_cast<size_t>(operand) : operands_.size() + r;
    };
    std::vector<TensorView> in, out;
    for (size_t i = 0; i < types_.size(); ++i) {
      bool is_result = i >= operands_.size();
      HostTensor& t = memory[is_result ? place(i - operands_.size()) : i];
      (is_result ? out : in).push_back({t.raw(), types_[i].dtype, types_[i].shape, &types_[i]});
    }
    int64_t version = 0;
    KernelRequest request{program_, instruction_,
                          KernelCall{&instruction_.attrs, in, out, nullptr, 0, 2}, &version};
    auto kernel = reference ? MakeReferenceKernel(request) : MakeCpuKernel(request);
    if (!kernel) return {};
    kernel->Run();
    std::vector<HostTensor> results;
    for (size_t r = 0; r < out.size(); ++r) results.push_back(memory[place(r)]);
    return results;
  }

 private:
  SampleGraph graph_;
  std::vector<HostTensor> operands_;
  std::vector<TensorType> types_;
  Program program_;
  Instruction instruction_;
};

class InPlace : public ::testing::TestWithParam<const OpDef*> {};

TEST_P(InPlace, GivesTheSameBits) {
  const OpDef& def = *GetParam();
  int pairs = 0;
  for (OpSample sample : OpSamples()) {
    if (sample.op != def.name) continue;
    std::vector<HostTensor> wide = sample.operands;
    for (DType dtype : {DType::kF64, DType::kF32, DType::kBF16}) {
      for (size_t i = 0; i < wide.size(); ++i) sample.operands[i] = As(wide[i], dtype);
      std::optional<OneOp> op;
      try {
        op.emplace(sample);
      } catch (const Diagnostic&) {
        continue;  // a type that the op does not take
      }
      size_t results = op->types().size() - op->num_operands();
      for (size_t o = 0; o < op->num_operands(); ++o) {
        for (size_t r = 0; r < results; ++r) {
          if (!MayRunInPlace(def, static_cast<int>(o), static_cast<int>(r))) continue;
          if (!(op->types()[o] == op->types()[op->num_operands() + r])) continue;
          for (bool reference : {true, false}) {
            SCOPED_TRACE(StrCat(sample.Name(), " ", DTypeName(dtype), ": result ", r,
                                " in operand ", o, reference ? ", reference" : ""));
            std::vector<HostTensor> apart = op->Run(reference, -1, -1);
            std::vector<HostTensor> shared =
                op->Run(reference, static_cast<int>(o), static_cast<int>(r));
            ASSERT_EQ(apart.size(), shared.size());
            for (size_t i = 0; i < apart.size(); ++i) EXPECT_TRUE(apart[i] == shared[i]) << i;
            pairs += apart.empty() ? 0 : 1;
          }
        }
      }
    }
  }
  // Comparisons and the like have no result of an operand's type.
  EXPECT_TRUE(pairs > 0 || !def.in_place) << "no sample runs in place";
}

std::vector<const OpDef*> Declared() {
  std::vector<const OpDef*> defs;
  for (const OpDef* def : AllOpDefs()) {
    bool local = def->reference && !def->communicates;
    if (local && def->in_place) defs.push_back(def);
  }
  return defs;
}
std::vector<const OpDef*> Elementwise() {
  std::vector<const OpDef*> defs;
  for (const OpDef* def : AllOpDefs()) {
    if (def->elementwise && !def->in_place) defs.push_back(def);
  }
  return defs;
}

std::string NameOf(const ::testing::TestParamInfo<const OpDef*>& info) {
  return std::string(info.param->name);
}
INSTANTIATE_TEST_SUITE_P(Declared, InPlace, ::testing::ValuesIn(Declared()), NameOf);
INSTANTIATE_TEST_SUITE_P(Elementwise, InPlace, ::testing::ValuesIn(Elementwise()), NameOf);

}  // namespace
}  // namespace shardc::testing
