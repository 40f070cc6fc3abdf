// Per-thread work memory of the *_isa.cc kernels: grows to the largest request, freed with its
// thread.
#ifndef RUNTIME_CPU_KERNELS_SCRATCH_H_
#define RUNTIME_CPU_KERNELS_SCRATCH_H_

#include <stdlib.h>

#include <cstdint>

#include "runtime/cpu/kernels/team_memory.h"

namespace shardc::cpu::SHARDC_ISA {

class Scratch {
 public:
  Scratch() = default;
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;
  ~Scratch() { free(data_); }

  // 64-byte aligned room for `count` floats, contents undefined; valid until the next call. Throws
  // std::bad_alloc.
  float* Get(int64_t count) {
    float* data = GetOrNull(count);
    if (data == nullptr && count > 0) ThrowNoMemory();
    return data;
  }

  // The same, null where there is no memory.
  float* GetOrNull(int64_t count) {
    if (count > capacity_) {
      free(data_);
      capacity_ = 0;
      const size_t bytes = (static_cast<size_t>(count) * sizeof(float) + 63) / 64 * 64;
      data_ = static_cast<float*>(aligned_alloc(64, bytes));
      if (data_ != nullptr) capacity_ = count;
    }
    return data_;
  }

 private:
  float* data_ = nullptr;
  int64_t capacity_ = 0;
};

}  // namespace shardc::cpu::SHARDC_ISA

#endif  // RUNTIME_CPU_KERNELS_SCRATCH_H_
