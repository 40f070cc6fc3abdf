// An op takes every index below its limit, and refuses the limit.
#include <gtest/gtest.h>

#include <set>

#include "ir/op_def.h"
#include "tests/ir/interpreter.h"
#include "tests/ir/op_samples.h"

namespace shardc::testing {
namespace {

TEST(IndexLimit, IsWhereTheOpBeginsToRefuse) {
  std::set<std::string_view> seen;
  for (const OpSample& sample : OpSamples()) {
    const OpDef& def = GetOpDef(sample.op);
    if (!def.index_limit) continue;
    std::vector<TensorType> types;
    for (const HostTensor& t : sample.operands) types.emplace_back(t.dtype(), t.shape());
    std::vector<const TensorType*> pointers;
    for (const TensorType& t : types) pointers.push_back(&t);
    for (size_t i = 0; i < types.size(); ++i) {
      const int64_t limit = def.index_limit(static_cast<int>(i), {pointers, sample.attrs});
      if (limit == 0 || types[i].num_elements() == 0) continue;
      ASSERT_TRUE(IsInteger(types[i].dtype)) << sample.Name();
      std::vector<HostTensor> operands = sample.operands;
      for (int64_t k = 0; k < types[i].num_elements(); ++k) {
        operands[i].SetDouble(k, static_cast<double>(limit - 1));
      }
      EXPECT_NO_THROW(RunOp(sample.op, operands, sample.attrs)) << sample.Name();
      operands[i].SetDouble(0, static_cast<double>(limit));
      EXPECT_THROW(RunOp(sample.op, operands, sample.attrs), Diagnostic) << sample.Name();
      seen.insert(def.name);
    }
  }
  for (const OpDef* def : AllOpDefs()) {
    EXPECT_EQ(seen.contains(def->name), def->index_limit != nullptr) << def->name;
  }
}

}  // namespace
}  // namespace shardc::testing
