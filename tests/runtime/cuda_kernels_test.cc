// The CUDA kernels, run on the CPU by emulation, against the reference of every op.
#include <gmock/gmock.h>

#include <cmath>
#include <limits>
#include <map>
#include <set>

#include "ir/op_def.h"
#include "tests/gpu/epilogue_cases.h"
#include "tests/gpu/kernel_cases.h"
#include "tests/gpu/made_again_cases.h"
#include "tests/runtime/emulated_epilogues.h"
#include "tests/runtime/emulated_machine.h"

namespace shardc::testing {
namespace {

using ::testing::StartsWith;

void RunAll(const std::vector<KernelCase>& cases) {
  EmulatedMachine machine;
  EXPECT_FALSE(cases.empty());
  for (const KernelCase& c : cases) EXPECT_EQ(RunCase(machine, c), "") << c.name;
}

TEST(CudaKernels, SamplesF32) { RunAll(SampleCases(DType::kF32)); }
TEST(CudaKernels, SamplesF64) { RunAll(SampleCases(DType::kF64)); }
TEST(CudaKernels, SamplesBf16) { RunAll(SampleCases(DType::kBF16)); }
TEST(CudaKernels, SamplesF16) { RunAll(SampleCases(DType::kF16)); }
TEST(CudaKernels, LargeF32) { RunAll(LargeCases(DType::kF32)); }
TEST(CudaKernels, LargeF64) { RunAll(LargeCases(DType::kF64)); }
TEST(CudaKernels, LargeBf16) { RunAll(LargeCases(DType::kBF16)); }
TEST(CudaKernels, LargeF16) { RunAll(LargeCases(DType::kF16)); }
TEST(CudaKernels, Types) { RunAll(TypeCases()); }
TEST(CudaKernels, Sharded) { RunAll(ShardedCases()); }
TEST(CudaKernels, WhatIsMadeAgainHasTheSameBits) {
  EmulatedMachine machine;
  EXPECT_EQ(WhereMadeAgainDiffers([&](const KernelCase& c) { return RunOn(machine, c); }), "");
}

// The shared memory that the case took.
size_t SharedOf(const std::string& op, int64_t cols, int64_t rows, const Attributes& attrs,
                const std::vector<std::string>& operands) {
  KernelCase c{op, op, attrs, {}};
  for (const std::string& o : operands) {
    const Shape shape = o == "row" ? Shape{cols} : o == "column" ? Shape{rows} : Shape{rows, cols};
    c.operands.push_back(As(RandomFloats(shape, c.operands.size() + 1), DType::kF32));
  }
  EmulatedMachine machine;
  auto& gpu = cuda::emulation::Machine::Get();
  gpu.largest_shared = 0;
  EXPECT_EQ(RunCase(machine, c), "") << op << " of " << cols;
  return gpu.largest_shared;
}

// GPT-3 175B has rows of 12288, LLaMA 405B of 16384.
// The norms themselves keep rows in registers: see ptx/norms_read_rows_once.
TEST(CudaKernels, NormGradientsReadWideRowsOnce) {
  constexpr size_t kGpt = 12288 * sizeof(float), kLlama = 16384 * sizeof(float);
  // Sums for weights, biases and, with `sums`, for what is written.
  const std::vector<std::string> layer = {"all", "all", "column", "column", "row"},
                                 rms = {"all", "all", "column", "row"};
  auto added = [](std::vector<std::string> operands) {
    operands.insert(operands.begin(), "all");
    return operands;
  };
  EXPECT_EQ(SharedOf("layer_norm_grad", 16384, 2, {{"bias", true}}, layer), 2 * kLlama);
  EXPECT_EQ(SharedOf("rms_norm_grad", 16384, 2, {}, rms), kLlama);
  const Attributes sums = {{"bias", true}, {"sums", true}};
  EXPECT_EQ(SharedOf("layer_norm_grad_add", 12288, 2, sums, added(layer)), 3 * kGpt);
  EXPECT_EQ(SharedOf("rms_norm_grad_add", 16384, 2, {{"sums", true}}, added(rms)), 2 * kLlama);
}

// Of rows that fit into the shared memory, which is an A100's here.
TEST(CudaKernels, CrossEntropyReadsLogitsOnce) {
  auto shared = [](DType dtype, int64_t cols) {
    HostTensor x(dtype, {2, cols}), rows(DType::kF32, {2});
    KernelCase c{"", "cross_entropy_with_grad", {}, {rows, x, RandomInts({2}, 2, 0, cols)}};
    EmulatedMachine machine;
    auto& gpu = cuda::emulation::Machine::Get();
    gpu.largest_shared = 0;
    EXPECT_EQ(RunCase(machine, c), "") << cols;
    return gpu.largest_shared;
  };
  EXPECT_EQ(shared(DType::kBF16, 32000), 2u * 32000);
  EXPECT_EQ(shared(DType::kF32, 16001), 4u * 16000);
  EXPECT_EQ(shared(DType::kBF16, 50257), 2u * 50256);
  EXPECT_EQ(shared(DType::kF32, 41600), 0u);
}

// Cases of kernels whose blocks stride over what is left, and which read packs.
std::vector<KernelCase> RowCases(DType dtype) {
  static const std::set<std::string> kOps = {"softmax",
                                             "softmax_grad",
                                             "cross_entropy",
                                             "cross_entropy_with_grad",
                                             "cross_entropy_grad",
                                             "add_layer_norm",
                                             "fused_elementwise"};
  std::vector<KernelCase> cases = LargeCases(dtype);
  std::erase_if(cases, [](const KernelCase& c) { return !kOps.contains(c.op); });
  return cases;
}

// A graph of kernels alone is launched in a time that does not grow with their number.
TEST(CudaKernels, StretchesOfMemoryAreCopiedByKernels) {
  const HostTensor x = RandomFloats({6, 8}, 1);
  const KernelCase cases[] = {
      {"slice",
       "slice",
       {{"starts", Ints{2, 0}}, {"limits", Ints{5, 8}}, {"steps", Ints{1, 1}}},
       {x}},
      {"concat", "concat", {{"axis", int64_t{0}}}, {x, x}},
      {"reshape", "reshape", {{"shape", Ints{8, 6}}}, {x}}};
  EmulatedMachine machine;
  auto& gpu = cuda::emulation::Machine::Get();
  for (const KernelCase& c : cases) {
    gpu.grid.x = 0;
    EXPECT_EQ(RunCase(machine, c), "") << c.name;
    EXPECT_GT(gpu.grid.x, 0u) << c.name;
  }
}

// Of more rows than blocks, each of which finds its shared memory as its last row left it.
TEST(CudaKernels, ABlockTakesSeveralRows) {
  auto& gpu = cuda::emulation::Machine::Get();
  gpu.most_blocks = 2;
  for (DType dtype : {DType::kF32, DType::kBF16}) RunAll(RowCases(dtype));
  gpu.most_blocks = INT32_MAX;
}

// Memory that begins at a multiple of so many bytes only, which no pack may be read from.
class UnalignedMachine : public EmulatedMachine {
 public:
  explicit UnalignedMachine(int64_t by) : by_(by) {}
  std::byte* Allocate(int64_t bytes) override {
    return EmulatedMachine::Allocate(bytes + by_) + by_;
  }
  void Free(std::byte* p) override { EmulatedMachine::Free(p - by_); }

 private:
  int64_t by_;
};

TEST(CudaKernels, ReadUnalignedMemory) {
  for (DType dtype : {DType::kF32, DType::kBF16}) {
    for (int64_t by : {8, 16}) {
      UnalignedMachine machine(by);
      for (const KernelCase& c : RowCases(dtype)) {
        EXPECT_EQ(RunCase(machine, c), "") << c.name << " at " << by;
      }
    }
  }
}

TEST(CudaKernels, AttentionReadsUnalignedMemory) {
  for (DType dtype : {DType::kF32, DType::kBF16}) {
    UnalignedMachine machine(8);
    for (const KernelCase& c : LargeCases(dtype)) {
      if (c.op.find("attention") == std::string::npos) continue;
      if (c.operands[0].num_elements() > 5000) continue;
      EXPECT_EQ(RunCase(machine, c), "") << c.name;
    }
  }
}

// As little as sm_86 and sm_89 have, which run the code for sm_80.
TEST(CudaKernels, AttentionWithLittleSharedMemory) {
  auto& gpu = cuda::emulation::Machine::Get();
  gpu.most_shared = 99 << 10;
  EmulatedMachine machine;
  std::map<int64_t, int> widths;
  for (DType dtype : {DType::kF32, DType::kBF16}) {
    for (const KernelCase& c : LargeCases(dtype)) {
      if (c.op != "attention" && c.op != "attention_grad") continue;
      const int64_t width = c.operands[0].shape().back();
      if (width < 128) continue;
      ++widths[width > 128 ? 256 : 128];
      EXPECT_EQ(RunCase(machine, c), "") << c.name;
    }
  }
  gpu.most_shared = cuda::emulation::kMostShared;
  EXPECT_EQ(widths.size(), 2u);
}

std::vector<KernelCase> Rotaries() {
  std::vector<KernelCase> cases = TypeCases();
  std::erase_if(cases, [](const KernelCase& c) { return c.op != "rotary"; });
  EXPECT_FALSE(cases.empty());
  return cases;
}

TEST(CudaKernels, RotaryReadsUnalignedMemory) {
  for (int64_t by : {4, 8, 16}) {
    UnalignedMachine machine(by);
    for (const KernelCase& c : Rotaries()) {
      if (c.operands[0].dtype() == DType::kF64 && by < 8) continue;
      EXPECT_EQ(RunCase(machine, c), "") << c.name << " at " << by;
    }
  }
}

// What is not turned is left alone there, and the same bits come out.
TEST(CudaKernels, RotaryRunsInPlace) {
  EmulatedMachine machine;
  for (const KernelCase& c : Rotaries()) {
    if (c.attrs.Has("out")) continue;
    HostTensor x = c.operands[0], cos = c.operands[1], sin = c.operands[2];
    const TensorView place{x.raw(), x.dtype(), x.shape()};
    const TensorView in[] = {
        place, {cos.raw(), cos.dtype(), cos.shape()}, {sin.raw(), sin.dtype(), sin.shape()}};
    const TensorView out[] = {place};
    Program program;
    Instruction instruction;
    instruction.op = c.op;
    KernelCall call;
    call.attrs = &c.attrs;
    call.in = in;
    call.out = out;
    auto kernel = machine.Make({program, instruction, call});
    ASSERT_TRUE(kernel) << c.name;
    kernel->Enqueue(machine.NewLaunch());
    EXPECT_TRUE(x == RunOn(machine, c)[0]) << c.name;
  }
}

// Of statistics that the forward gave, where some queries see no key.
TEST(CudaKernels, AttentionGradientsOfQueriesWithoutKeys) {
  EmulatedMachine machine;
  for (DType dtype : {DType::kF32, DType::kF64, DType::kBF16}) {
    auto f = [&](Shape shape, uint64_t seed) { return As(RandomFloats(shape, seed), dtype); };
    const Attributes attrs = {{"scale", 0.3}, {"causal", true}, {"layout", std::string("bhsd")}};
    const HostTensor q = f({1, 4, 90, 16}, 1), k = f({1, 2, 20, 16}, 2), v = f({1, 2, 20, 8}, 3);
    const std::vector<HostTensor> out = RunOn(machine, {"", "attention", attrs, {q, k, v}});
    ASSERT_EQ(out.size(), 2u);
    EXPECT_EQ(out[1].AsDouble(0), -std::numeric_limits<double>::infinity());
    EXPECT_EQ(out[0].AsDouble(0), 0);
    const KernelCase c{"", "attention_grad", attrs, {f({1, 4, 90, 8}, 4), q, k, v, out[0], out[1]}};
    EXPECT_EQ(RunCase(machine, c), "") << DTypeName(dtype);
  }
}

// As PyTorch: NaN where a row has NaN or infinity, or nothing but minus infinity; loss is infinite
// and the gradient -1 where the target's logit is minus infinity.
TEST(CudaKernels, LossesOfInfinity) {
  constexpr int64_t kCols = 601;
  constexpr double kInf = std::numeric_limits<double>::infinity();
  for (DType dtype : {DType::kF32, DType::kF64, DType::kBF16, DType::kF16}) {
    HostTensor x(dtype, {6, kCols}), labels = RandomInts({6}, 2, 3, 9);
    HostTensor rows(DTypeSize(dtype) == 2 ? DType::kF32 : dtype, {6}), loss = rows, dx = x;
    for (int64_t i = 0; i < x.num_elements(); ++i) {
      x.SetDouble(i, i / kCols == 3 ? -kInf : static_cast<double>(i % 7));
    }
    for (int64_t i = 0; i < 6; ++i) rows.SetDouble(i, 1);
    x.SetDouble(0 * kCols + 500, std::nan(""));
    x.SetDouble(1 * kCols + 500, kInf);
    x.SetDouble(2 * kCols + 500, -kInf);
    x.SetDouble(4 * kCols + static_cast<int64_t>(labels.AsDouble(4)), -kInf);
    labels.SetDouble(5, -100);
    x.SetDouble(5 * kCols + 1, 3);
    EmulatedMachine machine;
    const std::vector<HostTensor> got =
        RunOn(machine, {"", "cross_entropy_with_grad", {}, {rows, x, labels}});
    ASSERT_EQ(got.size(), 2u);
    for (int64_t row : {0, 1, 3}) {
      EXPECT_TRUE(std::isnan(got[0].AsDouble(row))) << row;
      for (int64_t c = 0; c < kCols; ++c) {
        ASSERT_TRUE(std::isnan(got[1].AsDouble(row * kCols + c))) << row << " " << c;
      }
    }
    EXPECT_TRUE(std::isfinite(got[0].AsDouble(2)));
    EXPECT_EQ(got[1].AsDouble(2 * kCols + 500), 0);
    EXPECT_EQ(got[0].AsDouble(4), kInf);
    EXPECT_EQ(got[1].AsDouble(4 * kCols + static_cast<int64_t>(labels.AsDouble(4))), -1);
    EXPECT_EQ(got[0].AsDouble(5), 0);
    EXPECT_EQ(got[1].AsDouble(5 * kCols + 1), 0);
  }
}

TEST(CudaKernels, EveryOpHasOne) {
  std::set<std::string_view> have;
  for (std::string_view op : cuda::emulated::KernelOps()) have.insert(op);
  for (const OpDef* def : AllOpDefs()) {
    bool runs =
        !def->communicates && !def->is_state && def->name != "update" && def->name != "constant";
    if (runs) {
      EXPECT_TRUE(have.contains(def->name)) << def->name;
    }
  }
  for (std::string_view op : {"copy", "pack", "unpack"}) EXPECT_TRUE(have.contains(op)) << op;
}

TEST(CudaKernels, BadIdsAreReported) {
  EmulatedMachine machine;
  HostTensor table = RandomFloats({10, 4}, 1), ids = RandomInts({6}, 2, 0, 10);
  ids.SetDouble(4, 12);
  KernelCase c{"", "embedding", {}, {table, ids}};
  EXPECT_EQ(RunFault(machine, c), (cuda::Fault{cuda::Fault::kBadId, 4, 12, 10}));
  ids.SetDouble(4, -11);
  EXPECT_EQ(RunFault(machine, {"", "gather", {{"axis", int64_t{0}}}, {table, ids}}),
            (cuda::Fault{cuda::Fault::kBadIndex, 4, -11, 10}));
  HostTensor labels = RandomInts({10}, 2, 0, 4);
  labels.SetDouble(7, 4);
  EXPECT_EQ(RunFault(machine, {"", "cross_entropy", {}, {table, labels}}),
            (cuda::Fault{cuda::Fault::kBadLabel, 7, 4, 4}));
}

// By loops as cuBLASLt does it, against the separate kernels; and a wrong one is found out.
class CudaKernelsEpilogues : public ::testing::TestWithParam<DType> {};

TEST_P(CudaKernelsEpilogues, AgreeWithSeparateKernels) {
  EmulatedMachine machine;
  EmulatedEpilogues library;
  std::set<cuda::Epilogue> seen;
  for (const EpilogueCase& c : EpilogueCases(GetParam())) {
    library.wrong = false;
    EXPECT_THAT(TryEpilogue(machine, library, c), StartsWith("1 ")) << c.name;
    library.wrong = true;
    EXPECT_THAT(TryEpilogue(machine, library, c), StartsWith("0 differs: result 0 is ")) << c.name;
    seen.insert(c.epilogue);
  }
  EXPECT_EQ(seen.size(), 6u);
}

INSTANTIATE_TEST_SUITE_P(Types, CudaKernelsEpilogues,
                         ::testing::Values(DType::kF32, DType::kBF16, DType::kF16),
                         [](const auto& info) { return std::string(DTypeName(info.param)); });

}  // namespace
}  // namespace shardc::testing
