// Kernels written by hand, with what the PTX ISA manual says that they give.
#include "tests/runtime/cuda/ptx/machine.h"

#include <gmock/gmock.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <stdexcept>
#include <string>
#include <vector>

#include "tests/runtime/cuda/ptx/kernel_of.h"

namespace shardc::ptx {
namespace {

using ::testing::HasSubstr;

class Machines : public ::testing::Test {
 protected:
  // Of what ModuleOf makes of `body`, over `data`: what is there afterwards.
  template <typename T>
  std::vector<T> Run(const std::string& body, std::vector<T> data, const Grid& grid) {
    Module module = ModuleOf(body);
    DeviceMemory memory;
    std::byte* p = memory.Allocate(static_cast<int64_t>(data.size() * sizeof(T)));
    std::memcpy(p, data.data(), data.size() * sizeof(T));
    std::vector<std::byte> params(8);
    std::memcpy(params.data(), &p, 8);
    Execute(*module.Find("k"), grid, params, memory);
    std::memcpy(data.data(), p, data.size() * sizeof(T));
    return data;
  }
  // What it says of a kernel over eight words.
  std::string WhyNot(const std::string& body, const Grid& grid = {1, 32, 0}) {
    try {
      Run<uint32_t>(body, std::vector<uint32_t>(8), grid);
    } catch (const std::runtime_error& e) {
      return e.what();
    }
    return "";
  }
  // Of one thread, the 32 bits that `body` leaves in %r9.
  uint32_t Word(const std::string& body) {
    return Run<uint32_t>(body + "\nst.global.u32 [%rd0], %r9;", {0}, {1, 1, 0})[0];
  }
};

constexpr char kMyPlace[] = "mul.wide.u32 %rd1, %r0, 4; add.s64 %rd2, %rd0, %rd1;\n";

TEST_F(Machines, LanesPartAndMeet) {
  // Each lane adds 1 to its number so often, then all sum over the warp.
  auto sums = Run<uint32_t>(std::string(kMyPlace) + R"(
    mov.u32 %r1, 0;
    setp.eq.u32 %p1, %r0, 0;
    @%p1 bra done;
  again:
    add.u32 %r1, %r1, 1;
    setp.lt.u32 %p2, %r1, %r0;
    @%p2 bra again;
  done:
    shfl.sync.bfly.b32 %r2|%p3, %r1, 16, 31, -1;
    add.u32 %r1, %r1, %r2;
    shfl.sync.bfly.b32 %r2|%p3, %r1, 8, 31, -1;
    add.u32 %r1, %r1, %r2;
    st.global.u32 [%rd2], %r1;)",
                            std::vector<uint32_t>(32), {1, 32, 0});
  for (uint32_t l = 0; l < 32; ++l) EXPECT_EQ(sums[l], 4 * (l % 8) + 8 + 16 + 24);
}

TEST_F(Machines, WarpsMeetAtBarriers) {
  auto got = Run<uint32_t>(std::string(kMyPlace) + R"(
    mov.u32 %r3, kept;
    shl.b32 %r4, %r0, 2;
    add.u32 %r5, %r3, %r4;
    st.shared.u32 [%r5], %r0;
    bar.sync 0;
    sub.u32 %r6, 63, %r0;
    shl.b32 %r6, %r6, 2;
    add.u32 %r6, %r6, %r3;
    ld.shared.u32 %r7, [%r6];
    st.global.u32 [%rd2], %r7;)",
                           std::vector<uint32_t>(64), {3, 64, 0});
  for (uint32_t t = 0; t < 64; ++t) EXPECT_EQ(got[t], 63 - t);
}

TEST_F(Machines, FunctionsAreCalled) {
  auto got = Run<uint64_t>(R"(
    { .param .b64 a; st.param.b64 [a+0], 21; .param .b64 b;
    call.uni (b), twice, (a);
    ld.param.b64 %rd5, [b+0]; }
    st.global.u64 [%rd0], %rd5;)",
                           {0}, {1, 1, 0});
  EXPECT_EQ(got[0], 42u);
}

TEST_F(Machines, WhatAGpuRefusesOrLeavesUndefined) {
  EXPECT_EQ(WhyNot("st.global.u32 [%rd0+28], %r0;"), "");
  EXPECT_THAT(WhyNot("st.global.u32 [%rd0+32], %r0;"), HasSubstr("outside of what was allocated"));
  EXPECT_THAT(WhyNot("st.u32 [%rd0+-4], %r0;"), HasSubstr("outside of what was allocated"));
  EXPECT_THAT(WhyNot("ld.global.v2.u32 {%r1, %r2}, [%rd0+4];"), HasSubstr("not aligned"));
  EXPECT_THAT(WhyNot("mov.u32 %r3, kept; st.shared.u32 [%r3+256], %r0;"),
              HasSubstr("outside of shared memory"));
  EXPECT_EQ(WhyNot("mov.u32 %r3, dynamic; st.shared.u32 [%r3+12], %r0;", {1, 32, 16}), "");
  EXPECT_THAT(WhyNot("mov.u32 %r3, dynamic; st.shared.u32 [%r3+16], %r0;", {1, 32, 16}),
              HasSubstr("outside of shared memory"));
  EXPECT_THAT(WhyNot("mov.u64 %rd3, mine; st.local.u32 [%rd3+16], %r0;"),
              HasSubstr("outside of what was allocated"));
  const std::string some = "setp.lt.u32 %p1, %r0, 7;\n@%p1 bra on;\n";
  EXPECT_THAT(WhyNot(some + "shfl.sync.bfly.b32 %r1|%p3, %r0, 1, 31, -1;\nbra end;\non: add.u32 "
                            "%r1, %r0, 1;\nbar.sync 0;\nend:"),
              HasSubstr("wait here for others that do not come"));
  EXPECT_THAT(WhyNot(some + "bar.sync 0;\nbra end;\non: bar.sync 0;\nend:"),
              HasSubstr("wait here for others that do not come"));
  EXPECT_THAT(WhyNot("setp.lt.u32 %p1, %r0, 32;\n@%p1 bra end;\nbar.sync 0;\nend:", {1, 64, 0}),
              HasSubstr("some warps wait here"));
  // Lanes that have returned may leave out a shuffle, but no barrier.
  const std::string few = "setp.gt.u32 %p1, %r0, 7;\n@%p1 ret;\n";
  EXPECT_EQ(WhyNot(few + "shfl.sync.bfly.b32 %r1|%p3, %r0, 1, 31, -1;"), "");
  EXPECT_THAT(WhyNot(few + "bar.sync 0;"), HasSubstr("some lanes of the warp have returned"));
  EXPECT_THAT(WhyNot("shfl.sync.bfly.b32 %r1|%p3, %r0, 1, 31, 255;"),
              HasSubstr("not among the shuffle's members"));
  EXPECT_THAT(WhyNot("mov.u32 %r1, %tid.y;"), HasSubstr("unknown name '%tid.y'"));
  EXPECT_THAT(WhyNot("mov.b64 %rd1, p; st.u32 [%rd1], %r0;"),
              HasSubstr("outside of what was allocated"));
  EXPECT_THAT(WhyNot("", {1, 65, 0}), HasSubstr("a block of 65 threads"));
  for (const char* unknown : {"vadd.u32 %r1, %r2, %r3", "add.ftz.f32 %f1, %f2, %f3",
                              "mul.rz.f32 %f1, %f2, %f3", "setp.lt.ftz.f32 %p1, %f1, %f2",
                              "max.NaN.f32 %f1, %f2, %f3", "cvt.rn.relu.f16.f32 %rs1, %f1"}) {
    EXPECT_THAT(WhyNot(unknown + std::string(";")), HasSubstr("unknown instruction"));
  }
}

TEST_F(Machines, CopiesToSharedMemoryArriveWhenTheyAreWaitedFor) {
  // Two groups, the words of the first half and of the second; what is there behind each wait.
  const std::string begin = std::string(kMyPlace) + R"(
    mov.u32 %r3, dynamic; shl.b32 %r4, %r0, 3; add.u32 %r5, %r3, %r4;
    mul.wide.u32 %rd3, %r0, 8; add.s64 %rd4, %rd0, %rd3; add.s64 %rd5, %rd4, 256;
    mov.u32 %r6, 7; st.shared.u32 [%r5], %r6; add.u32 %r7, %r5, 256; st.shared.u32 [%r7], %r6;
    cp.async.ca.shared.global [%r5], [%rd4], 8, 8; cp.async.commit_group;
    cp.async.ca.shared.global [%r7], [%rd5], 8, 8; cp.async.commit_group;
)";
  const std::string end = R"(
    ld.shared.u32 %r8, [%r5]; ld.shared.u32 %r9, [%r7];
    st.global.u32 [%rd4], %r8; st.global.u32 [%rd5], %r9;)";
  std::vector<uint32_t> data(128);
  for (uint32_t i = 0; i < 128; ++i) data[i] = 100 + i;
  const Grid grid{1, 32, 512};
  const auto none = Run(begin + "cp.async.wait_group 2;" + end, data, grid),
             first = Run(begin + "cp.async.wait_group 1;" + end, data, grid),
             both = Run(begin + "cp.async.wait_group 0;" + end, data, grid);
  for (uint32_t l = 0; l < 32; ++l) {
    EXPECT_EQ(none[2 * l], 7u);
    EXPECT_EQ(first[2 * l], 100 + 2 * l);
    EXPECT_EQ(first[64 + 2 * l], 7u);
    EXPECT_EQ(both[64 + 2 * l], 164 + 2 * l);
  }
  EXPECT_THAT(
      WhyNot("mov.u32 %r3, dynamic; cp.async.cg.shared.global [%r3], [%rd0], 16, 8;", {1, 1, 512}),
      HasSubstr("copy"));
  EXPECT_THAT(
      WhyNot("mov.u32 %r3, dynamic; cp.async.cg.shared.global [%r3], [%rd0], 16, 16;", {1, 1, 8}),
      HasSubstr("outside of shared memory"));
}

TEST_F(Machines, IntegersWrapShiftAndCarry) {
  EXPECT_EQ(Word("add.s32 %r9, 2147483647, 1;"), 0x80000000u);
  EXPECT_EQ(Word("mul.hi.u32 %r9, -1, -1;"), 0xfffffffeu);
  EXPECT_EQ(Word("shl.b32 %r9, 1, 32;"), 0u);
  EXPECT_EQ(Word("shr.s32 %r9, -8, 40;"), ~0u);
  EXPECT_EQ(Word("add.cc.u32 %r8, -1, 1; addc.u32 %r9, 5, 6;"), 12u);
  EXPECT_EQ(Word("sub.cc.u32 %r8, 0, 1; subc.u32 %r9, 7, 2;"), 4u);
  EXPECT_EQ(Word("mad.lo.cc.u32 %r8, -1, 2, 4; madc.hi.u32 %r9, -1, 2, 10;"), 12u);
  EXPECT_EQ(Word("mov.u32 %r1, 0x33221100; mov.u32 %r2, 0x77665544; prmt.b32 %r9, %r1, %r2, "
                 "0x7520;"),
            0x77552200u);
  EXPECT_EQ(Word("bfi.b32 %r9, 7, -1, 4, 8;"), 0xfffff07fu);
  EXPECT_EQ(Word("mov.b64 %rd5, -3; cvt.u32.u64 %r9, %rd5;"), 0xfffffffdu);
  EXPECT_EQ(Word("cvt.s32.s8 %r9, 200;"), static_cast<uint32_t>(-56));
}

TEST_F(Machines, FloatsRoundAndSaturate) {
  auto real = [&](const std::string& body) {
    return std::bit_cast<float>(Word(body + "\nmov.b32 %r9, %f9;"));
  };
  const std::string nan = "mov.f32 %f1, 0f7FC00000;\n", big = "mov.f32 %f1, 0f60000000;\n",
                    third = "mov.f32 %f1, 0f3EAAAAAB;\nmov.f32 %f2, 0f3EAAAAAB;\n";
  EXPECT_EQ(Word(nan + "cvt.rzi.s32.f32 %r9, %f1;"), 0u);
  EXPECT_EQ(Word(nan + "cvt.f64.f32 %fd1, %f1; cvt.rzi.s32.f64 %r9, %fd1;"), 0x80000000u);
  EXPECT_EQ(Word(nan + "cvt.rzi.s64.f32 %rd5, %f1; shr.u64 %rd5, %rd5, 32; cvt.u32.u64 %r9, %rd5;"),
            0x80000000u);
  EXPECT_EQ(Word(big + "cvt.rni.s32.f32 %r9, %f1;"), 0x7fffffffu);
  EXPECT_EQ(real("mov.f32 %f1, 0f40200000;\ncvt.rni.f32.f32 %f9, %f1;"), 2);  // of 2.5
  EXPECT_EQ(real(nan + "max.f32 %f9, %f1, 0f3F800000;"), 1);
  EXPECT_EQ(real(nan + "cvt.sat.f32.f32 %f9, %f1;"), 0);
  EXPECT_EQ(real("div.approx.f32 %f9, 0f40000000, 0f7F000000;"), 0);  // by 2^127
  EXPECT_EQ(real("div.approx.ftz.f32 %f9, 0f40000000, 0f00000001;"), HUGE_VALF);
  EXPECT_EQ(real("ex2.approx.ftz.f32 %f9, 0f40A00000;"), 32);
  EXPECT_NEAR(real("rsqrt.approx.ftz.f32 %f9, 0f41800000;"), .25, 1e-7);
  EXPECT_NEAR(real("mov.f64 %fd1, 0d4030000000000000; rsqrt.approx.ftz.f64 %fd1, %fd1;\n"
                   "cvt.rn.f32.f64 %f9, %fd1;"),
              .25, 1e-6);
  EXPECT_EQ(real("add.rz.f32 %f9, 0f3F800000, 0f33C00000;"), 1);  // and 3/4 of a step
  EXPECT_EQ(real("add.rn.f32 %f9, 0f3F800000, 0f33C00000;"), 1 + 0x1p-23f);
  const float down = real(third + "fma.rm.f32 %f9, %f1, %f2, 0f3F800000;"),
              near = real(third + "fma.rn.f32 %f9, %f1, %f2, 0f3F800000;");
  const double exact = 1 + double{0x1.555556p-2f} * double{0x1.555556p-2f};
  EXPECT_LE(down, exact);
  EXPECT_GT(std::nextafter(down, 2.0f), exact);
  EXPECT_EQ(near, static_cast<float>(exact));
  // NaN is neither less nor equal, but unordered.
  EXPECT_EQ(Word(nan + "setp.lt.f32 %p1, %f1, %f1; selp.u32 %r9, 1, 0, %p1;"), 0u);
  EXPECT_EQ(Word(nan + "setp.ltu.f32 %p1, %f1, %f1; selp.u32 %r9, 1, 0, %p1;"), 1u);
  EXPECT_EQ(Word(nan + "setp.ne.f32 %p1, %f1, %f1; selp.u32 %r9, 1, 0, %p1;"), 0u);
  // Halves: ties to even, the first operand above.
  EXPECT_EQ(Word("mov.f32 %f1, 0f3F808000; mov.f32 %f2, 0f40000000;\n"
                 "cvt.rn.bf16x2.f32 %r9, %f1, %f2;"),
            0x3f804000u);
  EXPECT_EQ(Word("mov.f32 %f1, 0f477FF000; cvt.rn.f16.f32 %rs1, %f1; cvt.u32.u16 %r9, %rs1;"),
            0x7c00u);  // 65520 is no half
}

// A [16, 16] and B [16, 8] of bf16 in shared memory, by ldmatrix and mma.
TEST_F(Machines, MatricesMultiply) {
  auto value = [](int i) { return static_cast<float>((i * 37) % 17 - 8) / 4; };
  std::vector<uint32_t> data(128 + 64 + 128);  // A and B in pairs, C
  auto put = [&](int i, float v) {
    const uint32_t half = std::bit_cast<uint32_t>(v) >> 16;
    data[static_cast<size_t>(i / 2)] |= half << (i % 2 * 16);
  };
  for (int i = 0; i < 256 + 128; ++i) put(i, value(i));
  auto got = Run<uint32_t>(R"(
    mov.u32 %r20, dynamic;
    mov.u32 %r1, 0;
  copy:
    shl.b32 %r2, %r0, 2;
    mad.lo.s32 %r2, %r1, 128, %r2;
    cvt.u64.u32 %rd1, %r2;
    add.s64 %rd2, %rd0, %rd1;
    ld.global.u32 %r3, [%rd2];
    add.s32 %r4, %r20, %r2;
    st.shared.u32 [%r4], %r3;
    add.s32 %r1, %r1, 1;
    setp.lt.s32 %p1, %r1, 6;
    @%p1 bra copy;
    bar.warp.sync -1;
    and.b32 %r5, %r0, 15;
    shl.b32 %r5, %r5, 5;
    and.b32 %r6, %r0, 16;
    add.s32 %r7, %r5, %r6;
    add.s32 %r7, %r7, %r20;
    ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%r10, %r11, %r12, %r13}, [%r7];
    and.b32 %r8, %r0, 15;
    shl.b32 %r8, %r8, 4;
    add.s32 %r8, %r8, %r20;
    ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%r14, %r15, %r16, %r17}, [%r8+512];
    mov.f32 %f0, 0f3F800000;
    mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%f1, %f2, %f3, %f4},
      {%r10, %r11, %r12, %r13}, {%r14, %r15}, {%f0, %f0, %f0, %f0};
    shr.u32 %r18, %r0, 2;
    shl.b32 %r18, %r18, 5;
    and.b32 %r19, %r0, 3;
    shl.b32 %r19, %r19, 3;
    add.s32 %r18, %r18, %r19;
    cvt.u64.u32 %rd3, %r18;
    add.s64 %rd3, %rd3, %rd0;
    st.global.v2.f32 [%rd3+768], {%f1, %f2};
    st.global.v2.f32 [%rd3+1024], {%f3, %f4};)",
                           data, {1, 32, 768});
  for (int m = 0; m < 16; ++m) {
    for (int n = 0; n < 8; ++n) {
      float want = 1;
      for (int k = 0; k < 16; ++k) want += value(m * 16 + k) * value(256 + k * 8 + n);
      EXPECT_EQ(std::bit_cast<float>(got[static_cast<size_t>(192 + m * 8 + n)]), want)
          << m << ", " << n;
    }
  }
}

}  // namespace
}  // namespace shardc::ptx
