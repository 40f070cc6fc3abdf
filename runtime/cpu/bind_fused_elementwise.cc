#include <optional>

#include "ir/row_major.h"
#include "ir/scalar_program.h"
#include "runtime/cpu/bind.h"
#include "runtime/cpu/kernels/kernel_table.h"

namespace shardc::cpu {
namespace {

constexpr FusedStep Binary(BinaryOp op) { return {.kind = FusedStep::kBinary, .binary = op}; }
constexpr FusedStep Unary(UnaryOp op) { return {.kind = FusedStep::kUnary, .unary = op}; }
constexpr FusedStep Compare(CompareOp op) { return {.kind = FusedStep::kCompare, .compare = op}; }
constexpr FusedStep Grad(UnaryGradOp op) { return {.kind = FusedStep::kGrad, .grad = op}; }

// In the order of ScalarOp.
constexpr FusedStep kSteps[] = {
    Binary(BinaryOp::kAdd),
    Binary(BinaryOp::kSub),
    Binary(BinaryOp::kMul),
    Binary(BinaryOp::kDiv),
    Binary(BinaryOp::kPow),
    Binary(BinaryOp::kMin),
    Binary(BinaryOp::kMax),
    Unary(UnaryOp::kNeg),
    Unary(UnaryOp::kAbs),
    Unary(UnaryOp::kSqrt),
    Unary(UnaryOp::kRsqrt),
    Unary(UnaryOp::kReciprocal),
    Unary(UnaryOp::kExp),
    Unary(UnaryOp::kLog),
    Unary(UnaryOp::kLog1p),
    Unary(UnaryOp::kSin),
    Unary(UnaryOp::kCos),
    Unary(UnaryOp::kTanh),
    Unary(UnaryOp::kErf),
    Unary(UnaryOp::kSigmoid),
    Unary(UnaryOp::kRelu),
    Unary(UnaryOp::kSilu),
    Unary(UnaryOp::kGeluTanh),
    Unary(UnaryOp::kGeluErf),
    Grad(UnaryGradOp::kTanhFromOutput),
    Grad(UnaryGradOp::kSigmoidFromOutput),
    Grad(UnaryGradOp::kRelu),
    Grad(UnaryGradOp::kSilu),
    Grad(UnaryGradOp::kGeluTanh),
    Grad(UnaryGradOp::kGeluErf),
    Compare(CompareOp::kEqual),
    Compare(CompareOp::kNotEqual),
    Compare(CompareOp::kLess),
    Compare(CompareOp::kLessEqual),
    Compare(CompareOp::kGreater),
    Compare(CompareOp::kGreaterEqual),
    {.kind = FusedStep::kSelect},
};
static_assert(std::size(kSteps) == kNumScalarOps);

FusedStep Step(const ScalarStep& step) {
  FusedStep out = kSteps[static_cast<size_t>(step.op)];
  const bool selects = out.kind == FusedStep::kSelect;
  out.a = step.operands[selects ? 1 : 0];
  out.b = step.operands[selects ? 2 : 1];
  if (selects) out.c = step.operands[0];
  return out;
}

std::optional<FusedType> TypeOf(const TensorView& v) {
  if (v.dtype == DType::kF32) return FusedType::kF32;
  if (v.dtype == DType::kBF16) return FusedType::kBf16;
  if (v.dtype == DType::kBool) return FusedType::kBool;
  return std::nullopt;
}

// Neighbouring dims that all inputs walk through as if they were one become one.
bool SetDims(const Shape& shape, const std::vector<std::vector<int64_t>>& strides,
             FusedArgs& args) {
  args.rank = 0;
  for (size_t d = 0; d < shape.size(); ++d) {
    if (shape[d] == 1) continue;
    bool merges = args.rank > 0;
    for (size_t i = 0; merges && i < strides.size(); ++i) {
      merges = args.inputs[i].strides[args.rank - 1] == strides[i][d] * shape[d];
    }
    if (!merges && args.rank == FusedArgs::kMaxDims) return false;
    int at = merges ? args.rank - 1 : args.rank++;
    args.dims[at] = merges ? args.dims[at] * shape[d] : shape[d];
    for (size_t i = 0; i < strides.size(); ++i) args.inputs[i].strides[at] = strides[i][d];
  }
  if (args.rank == 0) args.dims[args.rank++] = 1;
  return true;
}

// The inputs, and the results, which are the values of these numbers; nothing where a type or the
// broadcasts have no kernel.
std::optional<FusedArgs> Arguments(const KernelRequest& r, const std::vector<int>& values) {
  FusedArgs args;
  std::vector<std::vector<int64_t>> strides;
  for (const TensorView& v : r.call.in) {
    const std::optional<FusedType> type = TypeOf(v);
    if (!type) return std::nullopt;
    strides.push_back(BroadcastStrides(v.shape, r.call.out[0].shape));
    args.inputs[args.num_inputs++] = {v.data, *type, {}};
  }
  if (!SetDims(r.call.out[0].shape, strides, args)) return std::nullopt;
  for (size_t i = 0; i < values.size(); ++i) {
    const TensorView& out = r.call.out[i];
    const std::optional<FusedType> type = TypeOf(out);
    if (!type) return std::nullopt;
    args.results[args.num_results++] = {values[i], out.data, *type};
  }
  return args;
}

std::unique_ptr<Kernel> MakeKernelOf(const FusedArgs& args, int threads) {
  return MakeKernel([args, threads] { Kernels().fused_elementwise.run(args, threads); });
}

std::unique_ptr<Kernel> MakeFused(const KernelRequest& r) {
  ScalarProgram program = ScalarProgram::Parse(*r.call.attrs, static_cast<int>(r.call.in.size()));
  std::optional<FusedArgs> args = Arguments(r, program.results);
  if (!args) return nullptr;
  for (const ScalarStep& step : program.steps) args->steps[args->num_steps++] = Step(step);
  return MakeKernelOf(*args, r.call.threads);
}

static_assert(ScalarProgram::kMaxInputs <= FusedArgs::kMaxInputs &&
              ScalarProgram::kMaxSteps <= FusedArgs::kMaxSteps &&
              ScalarProgram::kMaxResults <= FusedArgs::kMaxResults);

constexpr Binding kBindings[] = {{"fused_elementwise", MakeFused}};

}  // namespace

std::unique_ptr<Kernel> MakeOneStep(const KernelRequest& r, const FusedStep& step) {
  const TensorView& out = r.call.out[0];
  for (const TensorView& v : r.call.in) {
    // In place over an operand that stretches, it would be overwritten while it is read.
    if (v.data == out.data && (v.shape != out.shape || v.dtype != out.dtype)) return nullptr;
  }
  std::optional<FusedArgs> args = Arguments(r, {static_cast<int>(r.call.in.size())});
  if (!args || out.num_elements() == 0) return nullptr;
  args->steps[args->num_steps++] = step;
  return MakeKernelOf(*args, r.call.threads);
}

std::span<const Binding> FusedElementwiseBindings() { return kBindings; }

}  // namespace shardc::cpu
