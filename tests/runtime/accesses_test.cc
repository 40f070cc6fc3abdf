// What must be waited for before memory is written again.
#include "runtime/accesses.h"

#include <gmock/gmock.h>

namespace shardc {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

class SendsOf {
 public:
  SendsOf& Kernel(std::vector<int> in, std::vector<int> out) {
    Add(std::move(in), std::move(out));
    return *this;
  }
  SendsOf& KernelWithScratch(int scratch) {
    Add({}, {}).scratch = BufferOf(scratch);
    return *this;
  }
  SendsOf& Send(int slot) {
    Add({slot}, {}).collective = Transfer();
    return *this;
  }
  SendsOf& Receive(int slot) {
    Add({}, {slot}).collective = Transfer();
    return *this;
  }
  Program& program() { return program_; }

 private:
  Instruction& Add(std::vector<int> in, std::vector<int> out) {
    Instruction& i = program_.instructions.emplace_back();
    for (int slot : in) i.operands.push_back(BufferOf(slot));
    for (int slot : out) i.results.push_back(BufferOf(slot));
    return i;
  }
  int Transfer() {
    program_.collectives.emplace_back().kind = CollectiveKind::kSendRecv;
    return static_cast<int>(program_.collectives.size()) - 1;
  }
  // 64 bytes of the arena.
  int BufferOf(int slot) {
    Buffer& b = program_.buffers.emplace_back();
    b.offset = 64 * slot;
    b.bytes = 64;
    return static_cast<int>(program_.buffers.size()) - 1;
  }
  Program program_;
};

TEST(SendsToFinish, BeforeTheFirstThatWritesWhatTheySend) {
  SendsOf p;
  p.Kernel({}, {0}).Send(0).Send(1).Kernel({0, 1}, {2}).Receive(1).Kernel({2}, {0}).Kernel({}, {0});
  const auto finish = SendsToFinish(p.program());
  ASSERT_EQ(finish.size(), 8u);
  EXPECT_THAT(finish[4], ElementsAre(2)) << "a receive writes it";
  EXPECT_THAT(finish[5], ElementsAre(1));
  for (size_t i : {0, 1, 2, 3, 6, 7}) EXPECT_THAT(finish[i], IsEmpty()) << i;
}

TEST(SendsToFinish, BeforeTheFirstThatUsesItAsScratch) {
  SendsOf p;
  p.Send(0).KernelWithScratch(1).KernelWithScratch(0);
  const auto finish = SendsToFinish(p.program());
  EXPECT_THAT(finish[1], IsEmpty());
  EXPECT_THAT(finish[2], ElementsAre(0));
}

TEST(SendsToFinish, TheRestAtTheEnd) {
  SendsOf p;
  p.Send(0).Kernel({0}, {1}).Send(0);
  EXPECT_THAT(SendsToFinish(p.program()).back(), ElementsAre(0, 2));
}

TEST(SendsToFinish, StatesByTheirNames) {
  SendsOf p;
  p.Send(0).Kernel({}, {0}).Kernel({}, {0});
  const char* names[] = {"w", "v", "w"};
  for (size_t b = 0; b < 3; ++b) {
    p.program().buffers[b].space = Space::kState;
    p.program().buffers[b].name = names[b];
  }
  const auto finish = SendsToFinish(p.program());
  EXPECT_THAT(finish[1], IsEmpty());
  EXPECT_THAT(finish[2], ElementsAre(0));
}

}  // namespace
}  // namespace shardc
