// The communicator's suite with ranks as processes: every process runs the same tests, in the same
// order, and holds its own rank of each world. Started by mpirun.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "ir/diagnostic.h"
#include "runtime/processes.h"
#include "tests/runtime/communicator_suite.h"

namespace shardc {
namespace {

std::unique_ptr<Processes> processes;
std::unique_ptr<Communicator> control;  // of all processes, for the tests' own needs

World MakeWorld(int n) {
  World world(static_cast<size_t>(n));
  auto end = processes->MakeWorld(n);
  if (end) world[processes->rank()] = std::move(end);
  return world;
}

// Every process's text, by rank.
std::vector<std::string> Share(const std::string& mine) {
  constexpr int64_t kBytes = 2000;
  std::vector<uint8_t> all(kBytes * static_cast<size_t>(control->size()));
  std::vector<uint8_t> own(kBytes);
  std::copy_n(mine.begin(), std::min<size_t>(mine.size(), kBytes - 1), own.begin());
  control->AllGather(own.data(), all.data(), kBytes, DType::kBool);
  std::vector<std::string> texts;
  for (size_t at = 0; at < all.size(); at += kBytes) {
    texts.emplace_back(reinterpret_cast<const char*>(&all[at]));
  }
  return texts;
}

std::exception_ptr MakeError(const std::string& text) {
  const std::string mismatch = "CallMismatch: ", aborted = "Aborted: rank ";
  if (text == "no error") return nullptr;
  if (text.starts_with(mismatch)) {
    return std::make_exception_ptr(CallMismatch(text.substr(mismatch.size())));
  }
  if (text.starts_with(aborted)) {
    const size_t end = text.find(" aborted: ");
    return std::make_exception_ptr(
        Aborted(std::stoi(text.substr(aborted.size())), text.substr(end + 10)));
  }
  return std::make_exception_ptr(std::runtime_error(text));
}

void SwapErrors(std::vector<std::exception_ptr>& errors) {
  const auto rank = static_cast<size_t>(processes->rank());
  const auto texts = Share(rank < errors.size() ? ErrorText(errors[rank]) : "");
  for (size_t r = 0; r < errors.size(); ++r) {
    if (r != rank) errors[r] = MakeError(texts[r]);
  }
}

// In memory that the processes share: they are on one machine.
std::shared_ptr<std::atomic<int>> SharedCounter() {
  static int number = 0;
  const std::string name = Share(StrCat("/dev/shm/shardc_test_", getpid(), "_", number++)).front();
  const int fd = open(name.c_str(), O_CREAT | O_RDWR, 0600);
  SHARDC_CHECK(fd >= 0 && ftruncate(fd, sizeof(std::atomic<int>)) == 0);
  void* memory = mmap(nullptr, sizeof(std::atomic<int>), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  SHARDC_CHECK(memory != MAP_FAILED);
  close(fd);
  control->Barrier();
  unlink(name.c_str());
  return {static_cast<std::atomic<int>*>(memory),
          [](std::atomic<int>* p) { munmap(p, sizeof(*p)); }};
}

// Evaluated after main has joined the others.
INSTANTIATE_TEST_SUITE_P(Mpi, CommunicatorSuite,
                         testing::Values(WorldMaker{"mpi", MakeWorld, processes->size(),
                                                    std::chrono::milliseconds(200), SharedCounter}),
                         [](const auto& info) { return info.param.name; });

// Bad input fails on several ranks at once, and one of them is to speak of it.
TEST(MpiFailure, OfSeveralAtOnceOneIsNotShared) {
  for (int round = 0; round < 30; ++round) {
    auto end = processes->MakeWorld(processes->size());
    control->Barrier();
    if (round % 2 == 0 || processes->rank() % 2 == 1) end->Abort("bad input");
    // However late the others get a processor: a test that hangs is ended by what runs it.
    const auto failure = processes->failure(std::chrono::hours(1));
    const bool speaks = failure && failure->rank == processes->rank() && !failure->shared;
    int speakers = 0;
    for (const std::string& text : Share(speaks ? "speaks" : "")) speakers += text == "speaks";
    EXPECT_EQ(speakers, 1) << "round " << round;
  }
}

// Says only what fails: rank 0 speaks for all.
class Failures : public testing::EmptyTestEventListener {
  void OnTestPartResult(const testing::TestPartResult& result) override {
    if (!result.failed()) return;
    std::fprintf(stderr, "process %d: %s:%d: %s\n", processes->rank(), result.file_name(),
                 result.line_number(), result.message());
  }
};

}  // namespace
}  // namespace shardc

int main(int argc, char** argv) {
  using namespace shardc;  // NOLINT: a main
  if (!StartedByMpi()) {
    std::fprintf(stderr, "to be started by mpirun\n");
    return 2;
  }
  processes = JoinMpi();
  control = processes->MakeWorld(processes->size());
  swap_errors = SwapErrors;
  testing::InitGoogleTest(&argc, argv);
  if (processes->rank() > 0) {
    auto& listeners = testing::UnitTest::GetInstance()->listeners();
    delete listeners.Release(listeners.default_result_printer());
    listeners.Append(new Failures);
  }
  const int result = RUN_ALL_TESTS();
  control.reset();
  processes->Finish(false);
  return result;
}
