// cuDNN, asked without a GPU, has engines for the attention that models need: the graphs that
// libshardc_cudnn.so describes are ones that it takes.
#include <dlfcn.h>
#include <gtest/gtest.h>

#include "runtime/cuda/cudnn/attention_library.h"

namespace shardc::cuda {
namespace {

// What cuDNN knows of a GPU, in its JSON; the figures of an H200.
constexpr const char* kGpu = R"({
  "deviceName": "NVIDIA H200", "deviceVer": 900, "driverVer": 13000, "cudaDeviceId": 0,
  "pciDeviceId": 9013, "multiProcessorCount": 132, "warpSize": 32, "regsPerBlock": 65536,
  "maxGridSize": [2147483647, 65535, 65535], "maxBlockSize": [1024, 1024, 64],
  "maxSharedMemoryPerBlock": 49152, "maxSharedMemoryPerBlockOptin": 232448,
  "reservedSharedMemoryPerBlock": 1024, "maxRegistersPerSM": 65536, "maxCtasPerSM": 32,
  "maxThreadsPerBlock": 1024, "maxThreadsPerSM": 2048, "isTccDriver": 0, "supportCoopLaunch": 1,
  "smClockRateKHz": 1980000, "memClockRateKHz": 3201000, "l2CacheSize": 62914560,
  "totalGlobalMem": 150754820096})";

struct Sizes {
  int64_t b, hq, hkv, s, t, d;
  bool bshd = true, causal = true, bf16 = true, together = false;
  int64_t unseen = 0;
};

AttentionProblem Problem(const Sizes& z, bool backward, bool may_vary) {
  auto strides = [&](int64_t heads, int64_t rows, bool part = false) {
    if (part && z.together) {
      return std::array<int64_t, 3>{rows * 3 * heads * z.d, z.d, 3 * heads * z.d};
    }
    return z.bshd ? std::array<int64_t, 3>{rows * heads * z.d, z.d, heads * z.d}
                  : std::array<int64_t, 3>{rows * heads * z.d, rows * z.d, z.d};
  };
  return {.backward = backward,
          .bf16 = z.bf16,
          .causal = z.causal,
          .b = z.b,
          .hq = z.hq,
          .hkv = z.hkv,
          .s = z.s,
          .t = z.t,
          .d = z.d,
          .dv = z.d,
          .scale = 0.125f,
          .q_strides = strides(z.hq, z.s, true),
          .k_strides = strides(z.hkv, z.t + z.unseen, true),
          .v_strides = strides(z.hkv, z.t + z.unseen, true),
          .o_strides = strides(z.hq, z.s),
          .together = z.together,
          .unseen = z.unseen,
          .may_vary = may_vary};
}

// "" or why there is no engine.
std::string WhyNot(const Sizes& sizes, bool backward, bool may_vary = false) {
  static auto* plan = reinterpret_cast<PlanAttentionEngine*>(
      dlsym(dlopen(SHARDC_CUDNN, RTLD_NOW), "shardc_cudnn_plan_attention"));
  if (!plan) return dlerror();
  std::string why;
  std::unique_ptr<AttentionEngine> engine(plan(Problem(sizes, backward, may_vary), kGpu, 90, &why));
  EXPECT_EQ(engine == nullptr, !why.empty()) << why;
  return why;
}

TEST(CudnnPlan, HasEnginesForWhatModelsNeed) {
  const Sizes cases[] = {
      {64, 12, 12, 1024, 1024, 64},                          // GPT-2, batch, rows, heads
      {64, 12, 12, 1024, 1024, 64, false},                   // and batch, heads, rows
      {16, 25, 25, 1024, 1024, 64},                          // GPT-2 XL
      {64, 12, 12, 1024, 1024, 64, true, true, true, true},  // q, k and v in one tensor
      {2, 32, 8, 2048, 2048, 128},                           // groups of query heads
      {2, 8, 8, 512, 512, 64, true, false, false},           // f16, no mask
      {2, 8, 8, 128, 256, 64},                               // more keys than queries
      {2, 12, 12, 512, 1536, 64, true, true, true, false,
       512},  // the third of four parts of the queries
      {2, 12, 12, 512, 1536, 64, false, true, true, false, 512},
  };
  for (const Sizes& z : cases) {
    for (auto [backward, may_vary] :
         {std::pair(false, false), std::pair(true, false), std::pair(true, true)}) {
      EXPECT_EQ(WhyNot(z, backward, may_vary), "")
          << z.b << "x" << z.hq << ":" << z.hkv << "x" << z.s << "x" << z.d << " " << backward
          << may_vary;
    }
  }
}

TEST(CudnnPlan, SaysWhyThereIsNone) {
  EXPECT_NE(WhyNot({2, 4, 4, 64, 64, 12}, false).find("cuDNN: "), std::string::npos);
}

}  // namespace
}  // namespace shardc::cuda
