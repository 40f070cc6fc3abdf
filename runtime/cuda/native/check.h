// What CUDA or one of its libraries refuses, as a diagnostic (E4301).
#pragma once

#include <cuda_runtime_api.h>

#include <string_view>

#include "ir/diagnostic.h"

namespace shardc::cuda {

[[noreturn]] inline void ThrowCuda(std::string_view what, std::string_view why) {
  throw Diagnostic(
      "E4301", ExitCode::kIo, "CUDA", StrCat(what, ": ", why),
      "see whether the driver fits the CUDA libraries and the GPU has enough free memory");
}

inline void Check(cudaError_t status, std::string_view what) {
  if (status == cudaSuccess) return;
  cudaGetLastError();  // it would be reported again by the next launch
  ThrowCuda(what, cudaGetErrorString(status));
}

}  // namespace shardc::cuda
