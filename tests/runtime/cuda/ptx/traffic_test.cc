// What hand-written kernels do to memory, against what the CUDA C++ Programming Guide and Nsight
// Compute's guide say of such accesses.
#include "tests/runtime/cuda/ptx/traffic.h"

#include <gmock/gmock.h>

#include <cstring>
#include <string>
#include <vector>

#include "tests/runtime/cuda/ptx/kernel_of.h"

namespace shardc::ptx {
namespace {

// Of a kernel over 8 KiB, with 4 KiB of dynamic shared memory.
Traffic Measure(const std::string& body, const Grid& grid = {1, 32, 4096}) {
  Module module = ModuleOf(body);
  DeviceMemory memory;
  std::byte* p = memory.Allocate(8192);
  std::memset(p, 0, 8192);
  std::vector<std::byte> params(8);
  std::memcpy(params.data(), &p, 8);
  TrafficMeter meter(*module.Find("k"), grid);
  Execute(*module.Find("k"), grid, params, memory, &meter);
  return meter.total();
}

// Each lane's address in %rd2: p and `bytes` times its number.
std::string Strided(int bytes) {
  return "mul.wide.u32 %rd1, %r0, " + std::to_string(bytes) + "; add.s64 %rd2, %rd0, %rd1;\n";
}

TEST(Traffic, NeighboursShareSectors) {
  const GlobalAccesses words = Measure(Strided(4) + "ld.global.u32 %r1, [%rd2];").loads;
  EXPECT_EQ(words.requests, 1);
  EXPECT_EQ(words.bytes, 128);
  EXPECT_EQ(words.sectors, 4);
  EXPECT_EQ(words.wide, 0);
  EXPECT_EQ(words.touched, 128);
  const GlobalAccesses packs =
      Measure(Strided(16) + "ld.global.v4.u32 {%r1, %r2, %r3, %r4}, [%rd2];").loads;
  EXPECT_EQ(packs.bytes, 512);
  EXPECT_EQ(packs.sectors, 16);
  EXPECT_EQ(packs.wide, 1);
}

TEST(Traffic, CopiesToSharedMemoryAreLoads) {
  const Traffic t = Measure(Strided(16) +
                            "mov.u32 %r3, dynamic; shl.b32 %r4, %r0, 4; add.u32 %r5, %r3, %r4;\n"
                            "cp.async.cg.shared.global [%r5], [%rd2], 16, 16;\n"
                            "cp.async.commit_group;\ncp.async.wait_group 0;");
  EXPECT_EQ(t.loads.bytes, 512);
  EXPECT_EQ(t.loads.sectors, 16);
  EXPECT_EQ(t.loads.wide, 1);
  EXPECT_EQ(t.waits, 1);
}

TEST(Traffic, StridesAndShiftsTakeMoreSectors) {
  EXPECT_EQ(Measure(Strided(8) + "ld.global.u32 %r1, [%rd2];").loads.sectors, 8);
  EXPECT_EQ(Measure(Strided(128) + "st.global.u32 [%rd2], %r0;").stores.sectors, 32);
  EXPECT_EQ(Measure(Strided(4) + "ld.global.u32 %r1, [%rd2+4];").loads.sectors, 5);
  const Traffic same = Measure("ld.global.u32 %r1, [%rd0];");
  EXPECT_EQ(same.loads.sectors, 1);
  EXPECT_EQ(same.loads.bytes, 128);
  EXPECT_EQ(same.loads.touched, 4);
}

TEST(Traffic, LanesThatDoNotTakePartAskForNothing) {
  const std::string half = Strided(4) + "setp.lt.u32 %p1, %r0, 8;\n";
  const Traffic some = Measure(half + "@%p1 st.global.u32 [%rd2], %r0;");
  EXPECT_EQ(some.stores.requests, 1);
  EXPECT_EQ(some.stores.bytes, 32);
  EXPECT_EQ(some.stores.sectors, 1);
  EXPECT_EQ(some.loads.requests, 0);  // of parameters
  const Traffic none = Measure("setp.lt.u32 %p1, %r0, 0;\n@%p1 st.global.u32 [%rd0], %r0;");
  EXPECT_EQ(none.stores.requests, 0);
  EXPECT_EQ(none.instructions, 5);  // two before, and ret
}

TEST(Traffic, WhatIsReadAgainIsTouchedOnce) {
  const std::string load = "ld.global.u32 %r1, [%rd2];\n";
  const Traffic t = Measure(Strided(4) + load + load, {2, 64, 0});
  EXPECT_EQ(t.warps, 4);
  EXPECT_EQ(t.loads.requests, 8);
  EXPECT_EQ(t.loads.bytes, 8 * 128);
  EXPECT_EQ(t.loads.touched, 256);
}

TEST(Traffic, GenericAddressesCountWhereTheyPoint) {
  const Traffic t = Measure(Strided(4) + R"(
    st.u32 [%rd2], %r0;
    cvta.shared.u64 %rd3, 1024;
    mov.u64 %rd4, mine;
    st.u32 [%rd3], %r0;
    st.u32 [%rd4], %r0;)");
  EXPECT_EQ(t.stores.requests, 1);
  EXPECT_EQ(t.stores.generic, 1);
  EXPECT_EQ(t.shared_requests, 1);
  EXPECT_EQ(t.local, 1);
}

// Each lane's address in shared memory in %r2: `bytes` times its number.
Traffic Shared(int bytes, const std::string& access) {
  return Measure("mov.u32 %r1, dynamic; mad.lo.s32 %r2, %r0, " + std::to_string(bytes) +
                 ", %r1;\n" + access);
}

TEST(Traffic, BanksOfSharedMemory) {
  const std::string word = "st.shared.u32 [%r2], %r0;";
  EXPECT_EQ(Shared(4, word).wavefronts, 1);
  EXPECT_EQ(Shared(4, word).conflicts, 0);
  EXPECT_EQ(Shared(8, word).wavefronts, 2);     // 16 banks, two lanes each
  EXPECT_EQ(Shared(12, word).wavefronts, 1);    // 3 and 32 have no common divisor
  EXPECT_EQ(Shared(128, word).wavefronts, 32);  // one bank
  EXPECT_EQ(Shared(128, word).conflicts, 31);
  EXPECT_EQ(Shared(0, word).wavefronts, 1);  // one word
  // Two halves in each word.
  EXPECT_EQ(Shared(2, "ld.shared.u16 %rs1, [%r2];").wavefronts, 1);
}

TEST(Traffic, WideAccessesOfSharedMemoryGoByParts) {
  const std::string pair = "st.shared.v2.u32 [%r2], {%r0, %r0};",
                    four = "st.shared.v4.u32 [%r2], {%r0, %r0, %r0, %r0};";
  EXPECT_EQ(Shared(8, pair).wavefronts, 2);
  EXPECT_EQ(Shared(8, pair).conflicts, 0);
  EXPECT_EQ(Shared(16, four).wavefronts, 4);
  EXPECT_EQ(Shared(16, four).conflicts, 0);
  // Of the eight lanes of a quarter, each second one has the same banks.
  EXPECT_EQ(Shared(64, four).wavefronts, 16);
  EXPECT_EQ(Shared(64, four).conflicts, 12);
}

TEST(Traffic, MatricesAreReadByRows) {
  const std::string load =
      "ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%r10, %r11, %r12, %r13}, [%r2];";
  EXPECT_EQ(Shared(16, load).wavefronts, 4);
  EXPECT_EQ(Shared(128, load).wavefronts, 32);  // all rows begin in the same bank
  EXPECT_EQ(Shared(80, load).wavefronts, 4);    // rows of 64 bytes, padded by 16
  EXPECT_EQ(Shared(80, load).shared_requests, 1);
}

TEST(Traffic, WarpsWaitForLoads) {
  const std::string add = "add.u32 %r9, %r9, ";
  // One after the other, each used at once; or both before one is used.
  EXPECT_EQ(Measure(Strided(4) + "mov.u32 %r9, 0; ld.global.u32 %r1, [%rd2];\n" + add +
                    "%r1; ld.global.u32 %r2, [%rd2+4];\n" + add + "%r2;")
                .waits,
            2);
  EXPECT_EQ(Measure(Strided(4) + "mov.u32 %r9, 0; ld.global.u32 %r1, [%rd2];\n" +
                    "ld.global.u32 %r2, [%rd2+4];\n" + add + "%r1;" + add + "%r2;")
                .waits,
            1);
  EXPECT_EQ(Measure(Strided(4) + "ld.global.u32 %r1, [%rd2];").waits, 0);
}

TEST(Traffic, BarriersAndMmaAreInstructions) {
  EXPECT_EQ(Measure("bar.sync 0;", {1, 64, 0}).instructions, 2 * 4);
  const Traffic t = Measure(
      "mov.u32 %r1, 0; mov.f32 %f0, 0f00000000;\n"
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%f1, %f2, %f3, %f4}, "
      "{%r1, %r1, %r1, %r1}, {%r1, %r1}, {%f0, %f0, %f0, %f0};");
  EXPECT_EQ(t.mma, 1);
  EXPECT_EQ(t.instructions, 6);
}

TEST(Traffic, OneLineOfJson) {
  Traffic t;
  t.warps = 6;
  t.loads.touched = 7;
  EXPECT_EQ(
      ToJson("_ZN6shardc4cuda6device12_GLOBAL__N_14KindEi", {3, 64, 128}, t),
      "{\"kernel\": \"Kind(int)\", \"blocks\": 3, \"threads\": 64, \"shared\": 128, "
      "\"warps\": 6, \"instructions\": 0, \"mma\": 0, \"waits\": 0, \"loads\": {\"requests\": 0, "
      "\"bytes\": 0, "
      "\"sectors\": 0, \"wide\": 0, \"generic\": 0, \"touched\": 7}, \"stores\": {\"requests\": 0, "
      "\"bytes\": 0, \"sectors\": 0, \"wide\": 0, \"generic\": 0, \"touched\": 0}, \"atomics\": 0, "
      "\"local\": 0, \"shared_requests\": 0, \"wavefronts\": 0, \"conflicts\": 0}");
}

}  // namespace
}  // namespace shardc::ptx
