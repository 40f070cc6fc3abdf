// Where an op says that a result may be made in an operand's memory, its kernels give the same bits
// there as elsewhere: every sample of every op, in f64, f32, bf16 and f16.
#include <gtest/gtest.h>

#include <optional>

#include "ir/diagnostic.h"
#include "ir/op_def.h"
#include "tests/runtime/one_op.h"

namespace shardc::testing {
namespace {

class InPlace : public ::testing::TestWithParam<const OpDef*> {};

TEST_P(InPlace, GivesTheSameBits) {
  const OpDef& def = *GetParam();
  int pairs = 0;
  for (OpSample sample : OpSamples()) {
    if (sample.op != def.name) continue;
    std::vector<HostTensor> wide = sample.operands;
    for (DType dtype : {DType::kF64, DType::kF32, DType::kBF16, DType::kF16}) {
      for (size_t i = 0; i < wide.size(); ++i) sample.operands[i] = FloatsAs(wide[i], dtype);
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
