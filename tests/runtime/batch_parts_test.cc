#include "runtime/cuda/cudnn/batch_parts.h"

#include <gtest/gtest.h>

#include <array>
#include <vector>

#include "ir/diagnostic.h"
#include "runtime/cuda/cudnn/shared_engines.h"

namespace shardc::testing {
namespace {

using Bytes = std::vector<int64_t>;  // of each tensor from its begin on

// 100 bytes of workspace an example; remembers what it was given.
struct Engine : cuda::AttentionEngine {
  Engine(int64_t b, std::vector<Bytes>* runs) : b(b), runs(runs) {}
  int64_t workspace_bytes() const override { return 100 * b; }
  std::string Run(const cuda::AttentionTensors& t, void* workspace) override {
    Bytes at;
    for (void* p : {t.q, t.k, t.v, t.o, t.statistics, t.grad, t.dq, t.dk, t.dv}) {
      at.push_back(p ? reinterpret_cast<int64_t>(p) % 1000000 : -1);
    }
    runs->push_back(at);
    return workspace == nullptr ? "no workspace" : "";
  }
  int64_t b;
  std::vector<Bytes>* runs;
};

class BatchParts : public ::testing::Test {
 protected:
  std::shared_ptr<cuda::AttentionEngine> Make(int64_t b, int64_t most, int64_t least_batch = 1) {
    cuda::AttentionProblem p;
    p.b = b, p.hq = 3, p.s = 5;
    p.q_strides = {10, 0, 0}, p.k_strides = {20, 0, 0}, p.v_strides = {30, 0, 0};
    p.o_strides = {40, 0, 0};
    auto make = [&](const cuda::AttentionProblem& q, std::string* why) {
      return engines_.Get(
          StrCat(q.b), nullptr,
          [&](std::string* refusal) -> cuda::AttentionEngine* {
            asked_.push_back(q.b);
            *refusal = q.b < least_batch ? "too few examples" : "";
            return refusal->empty() ? new Engine(q.b, &runs_) : nullptr;
          },
          why);
    };
    return cuda::MakeWithin(most, p, make, &why_not_);
  }
  cuda::SharedEngines engines_;
  std::vector<int64_t> asked_;
  std::vector<Bytes> runs_;
  std::string why_not_;
};

TEST_F(BatchParts, TheWholeWhereItFits) {
  auto engine = Make(6, 600);
  EXPECT_EQ(asked_, std::vector<int64_t>{6});
  EXPECT_EQ(engine->workspace_bytes(), 600);
}

TEST_F(BatchParts, TheFewestEqualPartsThatFit) {
  auto engine = Make(6, 599);
  EXPECT_EQ(engine->workspace_bytes(), 300);
  EXPECT_EQ(Make(6, 149)->workspace_bytes(), 100);  // five parts would do, were they equal
  EXPECT_EQ(Make(6, 1)->workspace_bytes(), 100);
  EXPECT_EQ(Make(1, 1)->workspace_bytes(), 100);
}

TEST_F(BatchParts, EachPartHasItsExamples) {
  auto at = [](int64_t i) { return reinterpret_cast<void*>(1000000 * i); };
  cuda::AttentionTensors t{at(1), at(2), at(3), at(4), at(5), at(6), at(7), at(8), at(9)};
  auto engine = Make(4, 200);
  EXPECT_EQ(engine->Run(t, at(10)), "");
  EXPECT_EQ(runs_, (std::vector<Bytes>{{0, 0, 0, 0, 0, 0, 0, 0, 0},
                                       {40, 80, 120, 160, 120, 160, 40, 80, 120}}));
  runs_.clear();
  t.grad = t.dq = t.dk = t.dv = nullptr;
  EXPECT_EQ(engine->Run(t, nullptr), "no workspace");
  EXPECT_EQ(runs_, (std::vector<Bytes>{{0, 0, 0, 0, 0, -1, -1, -1, -1}}));
}

// The layers of a model have scratch of many sizes.
TEST_F(BatchParts, AnEngineForEachNumberOfParts) {
  std::vector<std::shared_ptr<cuda::AttentionEngine>> layers;
  for (int64_t most : {150, 199, 250, 310, 399, 599, 600, 700}) layers.push_back(Make(6, most));
  EXPECT_EQ(asked_, (std::vector<int64_t>{6, 1, 2, 3}));
  EXPECT_EQ(layers.front()->workspace_bytes(), 100);
  EXPECT_EQ(layers.back()->workspace_bytes(), 600);
}

TEST_F(BatchParts, TheWholeWhereThereIsNoPart) {
  EXPECT_EQ(Make(6, 300, 6)->workspace_bytes(), 600);
  EXPECT_EQ(why_not_, "");
  EXPECT_EQ(Make(6, 300, 7), nullptr);
  EXPECT_EQ(why_not_, "too few examples");
}

}  // namespace
}  // namespace shardc::testing
