// Binds program instructions to the kernels of runtime/cpu/kernels.
#pragma once

#include <memory>

#include "ir/row_major.h"
#include "runtime/cpu/kernels/fused_elementwise.h"
#include "runtime/kernel.h"

namespace shardc::cpu {

// Makes the fast kernel of an instruction, or null where its types or shapes have none.
using Factory = std::unique_ptr<Kernel> (*)(const KernelRequest&);

struct Binding {
  std::string_view op;
  Factory make;
};

// The step on the operands, which it names 0, 1, ..., of any broadcast and f32, bf16 or bool, as
// the result is. Null where a type or the broadcasts have no kernel, or a result would overwrite
// what is still read.
std::unique_ptr<Kernel> MakeOneStep(const KernelRequest& request, const FusedStep& step);

// One table per family.
std::span<const Binding> MatmulBindings();
std::span<const Binding> AttentionBindings();
std::span<const Binding> NormBindings();
std::span<const Binding> LossBindings();
std::span<const Binding> ElementwiseBindings();
std::span<const Binding> FusedElementwiseBindings();
std::span<const Binding> ShapeBindings();
std::span<const Binding> ReduceBindings();
std::span<const Binding> IndexBindings();
std::span<const Binding> OptimizerBindings();
std::span<const Binding> DropoutBindings();
std::span<const Binding> RotaryBindings();

inline const float* In(const KernelRequest& r, size_t i) { return r.call.in[i].as<const float>(); }
inline float* Out(const KernelRequest& r, size_t i) { return r.call.out[i].as<float>(); }

inline const uint16_t* InBf16(const KernelRequest& r, size_t i) {
  return r.call.in[i].as<const uint16_t>();
}
inline uint16_t* OutBf16(const KernelRequest& r, size_t i) { return r.call.out[i].as<uint16_t>(); }

// Whether all operands and results are f32, or bf16.
bool AllF32(const KernelRequest& r);
bool AllBf16(const KernelRequest& r);
inline constexpr size_t kNone = static_cast<size_t>(-1);
// Whether all operands and results are f32 but a result whose type is its op's choice, and an
// operand that may be narrow: these are f32 or bf16. kNone: there is no such one.
bool AllF32But(const KernelRequest& r, size_t result, size_t operand = kNone);
// Whether the view has no padding along the dim.
bool Full(const KernelRequest& r, const TensorView& view, int dim);

}  // namespace shardc::cpu
