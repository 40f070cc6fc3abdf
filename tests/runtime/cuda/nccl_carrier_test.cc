// The NCCL carrier over a fake libnccl.so.2: what it asks of NCCL, and that a rank that fails ends
// the others.
#include "runtime/cuda/native/nccl_carrier.h"

#include <gmock/gmock.h>
#include <nccl.h>

#include <chrono>
#include <thread>

#include "runtime/groups.h"
#include "runtime/in_process/in_process.h"
#include "tests/runtime/carrier_suite.h"
#include "tests/runtime/cuda/nccl_fixture.h"
#include "tests/runtime/own_time.h"
#include "tests/runtime/rank_threads.h"

namespace shardc::testing {
namespace {

using ::testing::HasSubstr;

using NcclCarrier = NcclFixture;

// A program that has one collective over each of some sets of axes, of f32.
Program WithCollectives(const std::string& mesh, int64_t rank, std::vector<std::vector<int>> axes) {
  Program p;
  p.mesh = Mesh::Parse(mesh);
  p.rank = rank;
  for (auto& a : axes) {
    Collective c;
    c.axes = std::move(a);
    p.collectives.push_back(c);
  }
  return p;
}

// body(rank, device, carrier) on a thread per rank.
template <typename Body>
std::vector<std::exception_ptr> OnRanks(const std::string& mesh, std::vector<std::vector<int>> axes,
                                        const Body& body) {
  Watchdog watchdog(60);
  int n = static_cast<int>(Mesh::Parse(mesh).num_ranks());
  std::vector<Program> programs;
  for (int r = 0; r < n; ++r) programs.push_back(WithCollectives(mesh, r, axes));
  const std::vector<std::vector<int>> groups = GroupAxes(programs);
  auto ends = MakeInProcessWorld(n);
  std::vector<std::exception_ptr> errors(static_cast<size_t>(n));
  std::vector<std::thread> threads;
  for (int r = 0; r < n; ++r) {
    threads.emplace_back([&, r, end = std::move(ends[r])]() mutable {
      FakeDevice device;
      std::unique_ptr<cuda::Carrier> carrier;
      try {
        carrier = cuda::MakeNccl(device, programs[r], groups, std::move(end));
        body(r, device, *carrier);
      } catch (const std::exception& e) {
        errors[r] = std::current_exception();
        if (carrier) carrier->Abort(e.what());
      }
    });
  }
  for (std::thread& t : threads) t.join();
  return errors;
}

TEST_F(NcclCarrier, GivesWhatACarrierMust) {
  for (int ranks : {1, 2, 5}) {
    auto errors = OnRanks(StrCat("tp=", ranks), {{0}}, [&](int r, FakeDevice& d, auto& c) {
      cuda::Stream s = d.MakeStream(false);
      // The large count is more than a slot of the fake.
      const std::vector<DType> dtypes(kAllDTypes.begin(), kAllDTypes.end());
      ForEachCarrierCase(ranks, dtypes, 20011, [&](const CarrierCase& k) {
        if (!k.HasPart(r)) return;
        std::array<Bytes, 2> send = k.send[r], got;
        cuda::Member me{r, s, {}};
        for (size_t b = 0; b < 2; ++b) {
          got[b].resize(k.want[r][b].size());
          Bytes& recv = k.in_place ? send[b] : got[b];
          me.buffers.push_back(k.BuffersOf(r, send[b].data(), recv.data()));
        }
        c.Enqueue(k.collective, {&me, 1});
        for (size_t b = 0; b < 2; ++b) {
          // NCCL may add in any order, and rounds on the way.
          EXPECT_EQ(Wrong(k, r, b, k.in_place ? send[b] : got[b],
                          k.dtype == DType::kF16    ? 0x1p-9
                          : k.dtype == DType::kBF16 ? 0x1p-6
                                                    : 0x1p-22),
                    "");
        }
      });
      c.Check();
      d.DestroyStream(s);
    });
    for (const auto& e : errors) EXPECT_EQ(ErrorText(e), "no error");
  }
}

// Groups of some of the ranks, in their order, on communicators of their own.
TEST_F(NcclCarrier, EveryGroupHasItsOwn) {
  auto errors = OnRanks("dp=2,tp=2", {{0}, {1}, {0, 1}}, [&](int r, FakeDevice& d, auto& c) {
    cuda::Stream s = d.MakeStream(false);
    auto gather = [&](std::vector<int> axes, const std::vector<float>& want) {
      const auto mine = static_cast<float>(r);
      std::vector<float> out(want.size(), -1);
      Collective what;
      what.kind = CollectiveKind::kAllGather;
      what.axes = std::move(axes);
      cuda::Member me{r, s, {{&mine, out.data(), 1, DType::kF32}}};
      c.Enqueue(what, {&me, 1});
      EXPECT_EQ(out, want) << "rank " << r;
    };
    const auto row = static_cast<float>(r / 2), column = static_cast<float>(r % 2);
    gather({0}, {column, column + 2});
    gather({1}, {2 * row, 2 * row + 1});
    gather({0, 1}, {0, 1, 2, 3});
    d.DestroyStream(s);
  });
  for (const auto& e : errors) EXPECT_EQ(ErrorText(e), "no error");
}

TEST_F(NcclCarrier, ARankThatFailsEndsThoseThatWaitForIt) {
  const OwnTime time;
  std::vector<std::vector<float>> memory(4, std::vector<float>(8));  // outlives the carriers
  auto errors = OnRanks("tp=4", {{0}}, [&](int r, FakeDevice& d, auto& c) {
    if (r == 2) throw Diagnostic("E4301", ExitCode::kIo, "CUDA", "the GPU has fallen off the bus");
    cuda::Stream s = d.MakeStream(false);
    std::vector<float>& x = memory[r];
    cuda::Member me{r, s, {{x.data(), x.data(), 8, DType::kF32}}};
    Collective what;
    what.axes = {0};
    c.Enqueue(what, {&me, 1});  // without rank 2 it stays in progress
  });
  EXPECT_LT(time.seconds(), 2);
  for (int r : {0, 1, 3}) {
    EXPECT_THAT(ErrorText(errors[r]), HasSubstr("rank 2 aborted: ")) << r;
    EXPECT_THAT(ErrorText(errors[r]), HasSubstr("fallen off the bus")) << r;
  }
}

// As NCCL's sometimes do; memory that it may still use is not freed.
TEST_F(NcclCarrier, AnAbortThatDoesNotEndIsNotWaitedForForever) {
  auto hang = [](bool on) { InFake<FakeNcclHangAborts>("shardc_fake_nccl_hang_aborts")(on); };
  Watchdog watchdog(60);
  FakeDevice device;
  const Program program = WithCollectives("tp=1", 0, {{0}});
  auto carrier = cuda::MakePatientNccl(std::chrono::milliseconds(10), device, program, {{0}},
                                       std::move(MakeInProcessWorld(1)[0]));
  std::byte* memory = carrier->Allocate(64);
  hang(true);
  carrier->Abort("a sticky error");
  carrier->WaitForAborted();
  carrier->Free(memory);
  carrier.reset();
  EXPECT_EQ(LiveCommunicators(), 1);
  EXPECT_EQ(LiveAllocations(), 1);
  hang(false);
  while (LiveCommunicators() > 0) std::this_thread::yield();
  InFake<decltype(ncclMemFree)>("ncclMemFree")(memory);
}

TEST_F(NcclCarrier, WhatNcclRefusesIsE4323) {
  // More ranks than the fake takes.
  auto errors = OnRanks("tp=17", {{0}}, [](int, FakeDevice&, auto&) {});
  int said = 0;
  for (const auto& e : errors) said += ErrorText(e).find("E4323") == 0;
  EXPECT_GE(said, 1) << ErrorText(errors[0]);
}

}  // namespace
}  // namespace shardc::testing
