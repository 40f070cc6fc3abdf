#include "runtime/cuda/cudnn/shared_engines.h"

#include <gtest/gtest.h>

namespace shardc::testing {
namespace {

struct Engine : cuda::AttentionEngine {
  int64_t workspace_bytes() const override { return 0; }
  std::string Run(const cuda::AttentionTensors&, void*) override { return ""; }
};

class SharedEngines : public ::testing::Test {
 protected:
  // `refusal`: why none is made.
  std::shared_ptr<cuda::AttentionEngine> Get(const std::string& key, uintptr_t stream,
                                             const std::string& refusal = "") {
    return engines_.Get(
        key, reinterpret_cast<CUstream_st*>(stream),
        [&](std::string* why) -> cuda::AttentionEngine* {
          ++made_;
          *why = refusal;
          return refusal.empty() ? new Engine : nullptr;
        },
        &why_not_);
  }
  cuda::SharedEngines engines_;
  int made_ = 0;
  std::string why_not_;
};

TEST_F(SharedEngines, OneForEachProblemAndStream) {
  auto a = Get("a", 1), again = Get("a", 1), other = Get("b", 1), elsewhere = Get("a", 2);
  EXPECT_EQ(a, again);
  EXPECT_NE(a, other);
  EXPECT_NE(a, elsewhere);
  EXPECT_EQ(made_, 3);
  EXPECT_EQ(why_not_, "");
}

TEST_F(SharedEngines, GoneWithTheLastThatUsesIt) {
  std::weak_ptr<cuda::AttentionEngine> first = Get("a", 1);
  EXPECT_TRUE(first.expired());
  EXPECT_NE(Get("a", 1), nullptr);
  EXPECT_EQ(made_, 2);
}

TEST_F(SharedEngines, ARefusalIsNotAskedForAgain) {
  EXPECT_EQ(Get("a", 1, "not on this GPU"), nullptr);
  EXPECT_EQ(why_not_, "not on this GPU");
  why_not_.clear();
  EXPECT_EQ(Get("a", 1, "not on this GPU"), nullptr);
  EXPECT_EQ(why_not_, "not on this GPU");
  EXPECT_EQ(made_, 1);
}

}  // namespace
}  // namespace shardc::testing
