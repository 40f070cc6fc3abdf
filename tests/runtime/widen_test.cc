// Half types where only f32 has a kernel.
#include "runtime/cpu/widen.h"

#include <gtest/gtest.h>

#include <optional>
#include <thread>

#include "ir/diagnostic.h"
#include "ir/op_def.h"
#include "tests/exec/harness.h"
#include "tests/runtime/one_op.h"

namespace shardc::testing {
namespace {

std::optional<OneOp> Sample(OpSample sample, DType dtype) {
  for (HostTensor& t : sample.operands) t = FloatsAs(t, dtype);
  try {
    return OneOp(sample);
  } catch (const Diagnostic&) {
    return std::nullopt;  // a type that the op does not take
  }
}

class Halves : public ::testing::TestWithParam<DType> {};

// No op is left to the naive kernels for its type alone; and what it gives is the f32 result
// rounded once.
TEST_P(Halves, HaveAKernelWhereF32HasOne) {
  const double tolerance = GetParam() == DType::kF16 ? 1.0 / 1024 : 1.0 / 128;
  int compared = 0;
  for (const OpSample& sample : OpSamples()) {
    const OpDef& def = GetOpDef(sample.op);
    if (!def.reference || def.communicates) continue;
    SCOPED_TRACE(sample.Name());
    std::optional<OneOp> wide = Sample(sample, DType::kF32), half = Sample(sample, GetParam());
    if (!wide || !half || wide->Run(/*reference=*/false).empty()) continue;
    std::vector<HostTensor> got = half->Run(/*reference=*/false), want = half->Run(true);
    EXPECT_EQ(got.size(), want.size()) << "no kernel";
    for (size_t i = 0; i < got.size(); ++i) {
      EXPECT_LE(WorstDifference(got[i], want[i], 1e-3), tolerance) << "result " << i;
    }
    ++compared;
  }
  EXPECT_GT(compared, 100);
}

// An operand that may be narrow is widened as it is read: the f32 result of the same values.
TEST_P(Halves, BesideF32WhereTheOpTakesThem) {
  int compared = 0;
  for (const OpSample& sample : OpSamples()) {
    const OpDef& def = GetOpDef(sample.op);
    for (int operand : def.narrow_operands) {
      if (!IsFloat(sample.operands[operand].dtype())) continue;
      SCOPED_TRACE(StrCat(sample.Name(), ", operand ", operand));
      OpSample mixed = sample;
      if (def.typed_result >= 0) mixed.attrs.Set("out", "f32");
      for (HostTensor& t : mixed.operands) t = FloatsAs(t, DType::kF32);
      HostTensor& narrow = mixed.operands[operand];
      narrow = FloatsAs(narrow, GetParam());
      const std::vector<HostTensor> got = OneOp(mixed).Run(/*reference=*/false);
      narrow = FloatsAs(narrow, DType::kF32);
      const OneOp wide(mixed);
      const std::vector<HostTensor> want = wide.Run(/*reference=*/false);
      ASSERT_EQ(got.size(), want.size()) << "no kernel";
      for (size_t i = 0; i < got.size(); ++i) {
        EXPECT_EQ(got[i].dtype(), DType::kF32);
        // Compiled for each type by itself, sums may be contracted otherwise.
        EXPECT_LE(WorstDifference(got[i], want[i], 1e-3), 1e-5) << "result " << i;
      }
      ++compared;
    }
  }
  EXPECT_GT(compared, 20);
}

// What runs where there is no fast kernel for the shape: it reads such operands too, and writes the
// type that the op chooses for its result.
TEST_P(Halves, BesideF32InNaiveKernels) {
  const double tolerance = GetParam() == DType::kF16 ? 1.0 / 1024 : 1.0 / 128;
  int compared = 0;
  for (const OpSample& sample : OpSamples()) {
    const OpDef& def = GetOpDef(sample.op);
    std::optional<OneOp> wide = Sample(sample, DType::kF32);
    if (!wide || !def.reference || def.communicates) continue;
    auto compare = [&](const OneOp& op, const OneOp& like, double most) {
      const std::vector<HostTensor> got = op.Run(/*reference=*/true),
                                    want = like.Run(/*reference=*/true);
      for (size_t i = 0; i < got.size(); ++i) {
        EXPECT_LE(WorstDifference(got[i], want[i], 1e-3), most) << "result " << i;
      }
      ++compared;
    };
    SCOPED_TRACE(sample.Name());
    OpSample typed = sample;
    if (def.typed_result >= 0) {
      typed.attrs.Set("out", std::string(DTypeName(GetParam())));
      std::optional<OneOp> narrow = Sample(typed, DType::kF32);
      if (narrow) compare(*narrow, *wide, tolerance);
      typed.attrs.Set("out", "f32");
    }
    for (int operand : def.narrow_operands) {
      if (!IsFloat(sample.operands[operand].dtype())) continue;
      SCOPED_TRACE(StrCat("operand ", operand));
      OpSample mixed = typed;
      for (HostTensor& t : mixed.operands) t = FloatsAs(t, DType::kF32);
      HostTensor& narrow = mixed.operands[operand];
      narrow = FloatsAs(narrow, GetParam());
      const OneOp half(mixed);
      narrow = FloatsAs(narrow, DType::kF32);
      compare(half, OneOp(mixed), 1e-5);
    }
  }
  EXPECT_GT(compared, 50);
}

// What an op says that it copies is what its kernel holds more than that of f32.
TEST_P(Halves, TakeThePredictedMemory) {
  int copied = 0;
  auto check = [&](const OneOp& half, int64_t without) {
    const int64_t held = half.HeldBytes();
    if (held < 0 || without < 0) return;
    const int64_t predicted = CostOnRank(half.op(), Mesh()).widened_bytes;
    EXPECT_EQ(held - without, predicted);
    copied += predicted > 0;
  };
  for (const OpSample& sample : OpSamples()) {
    const OpDef& def = GetOpDef(sample.op);
    // Casts between halves and other types than f32 are copied too, and rare.
    if (!def.reference || def.communicates || sample.op == "cast") continue;
    SCOPED_TRACE(sample.Name());
    std::optional<OneOp> wide = Sample(sample, DType::kF32), half = Sample(sample, GetParam());
    if (!wide) continue;
    // Products of bf16 have packed copies of their own.
    const bool packs = def.work_bytes && GetParam() == DType::kBF16;
    if (half && !packs) check(*half, wide->HeldBytes());
    for (int operand : def.narrow_operands) {
      OpSample mixed = sample;
      for (HostTensor& t : mixed.operands) t = FloatsAs(t, DType::kF32);
      HostTensor& one = mixed.operands[operand];
      one = FloatsAs(one, GetParam());
      check(OneOp(mixed), wide->HeldBytes());
    }
    if (def.typed_result < 0 || packs) continue;
    OpSample typed = sample;
    typed.attrs.Set("out", std::string(DTypeName(GetParam())));
    if (std::optional<OneOp> narrow = Sample(typed, DType::kF32)) check(*narrow, wide->HeldBytes());
  }
  EXPECT_GT(copied, GetParam() == DType::kF16 ? 100 : 20);
}

INSTANTIATE_TEST_SUITE_P(Types, Halves, ::testing::Values(DType::kBF16, DType::kF16),
                         [](const auto& info) { return std::string(DTypeName(info.param)); });

// The copies of one op are in the way of the next one's, which is larger: the first finds its place
// again.
TEST(Widened, SharesItsRoom) {
  Program program;
  Instruction instruction;
  auto request = [&](const std::vector<TensorView>& in, const std::vector<TensorView>& out) {
    return KernelRequest{program, instruction,
                         KernelCall{&instruction.attrs, in, out, nullptr, 0, 1}};
  };
  cpu::Factory doubles = [](const KernelRequest& r) {
    return MakeKernel([x = cpu::In(r, 0), y = cpu::Out(r, 0), n = r.call.in[0].num_elements()] {
      for (int64_t i = 0; i < n; ++i) y[i] = 2 * x[i];
    });
  };
  std::vector<HostTensor> tensors;
  std::vector<std::vector<TensorView>> views;
  for (int64_t n : {4, 4, 1 << 20, 1 << 20}) tensors.emplace_back(DType::kF16, Shape{n});
  for (HostTensor& t : tensors) {
    views.push_back({{t.raw(), DType::kF16, t.shape(), nullptr}});
    for (int64_t i = 0; i < t.num_elements(); ++i) t.SetDouble(i, 1);
  }
  std::thread([&] {  // whose room nobody has made larger
    auto small = cpu::MakeWidened(request(views[0], views[1]), doubles);
    auto large = cpu::MakeWidened(request(views[2], views[3]), doubles);
    EXPECT_EQ(large->held_bytes() + small->held_bytes(), 2 * 4 * (1 << 20));
    large->Run();
    small->Run();
  })
      .join();
  for (size_t t : {1u, 3u}) {
    for (int64_t i = 0; i < tensors[t].num_elements(); ++i) ASSERT_EQ(tensors[t].AsDouble(i), 2);
  }
  HostTensor ints(DType::kI32, {4});
  std::vector<TensorView> view = {{ints.raw(), DType::kI32, ints.shape(), nullptr}};
  EXPECT_EQ(cpu::MakeWidened(request(view, view), doubles), nullptr);
  EXPECT_EQ(cpu::MakeWidened(request(views[0], views[1]),
                             [](const KernelRequest&) { return std::unique_ptr<Kernel>(); }),
            nullptr);
}

}  // namespace
}  // namespace shardc::testing
