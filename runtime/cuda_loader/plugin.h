// What the binary and libshardc_cuda.so must agree on. The plugin is of the same build as the
// binary, so C++ objects and exceptions pass between them; the entry points are C, to be found by
// name.
#pragma once

#include "runtime/backend.h"

namespace shardc {

// Raised whenever RunnerRequest, StepRunner or what they hold changes.
inline constexpr int kCudaPluginVersion = 1;
using CudaPluginVersion = int();  // "shardc_cuda_version"
using CudaPluginMakeRunner =
    StepRunner*(const RunnerRequest*);  // "shardc_cuda_make_runner"; throws Diagnostic

}  // namespace shardc
