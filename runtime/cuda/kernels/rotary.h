// rotary: its arithmetic, for host and device, and its table of bindings.
#pragma once

#include <span>

#include "runtime/cuda/kernels/bind.h"

namespace shardc::cuda {

template <typename W>
struct Turned {
  W first, second;
};
template <typename W>
SHARDC_HD Turned<W> Turn(W first, W second, W cos, W sin) {
  return {first * cos - second * sin, second * cos + first * sin};
}

namespace SHARDC_KERNEL_SPACE {

std::span<const Binding> RotaryBindings();

}  // namespace SHARDC_KERNEL_SPACE
}  // namespace shardc::cuda
