// The CUDA plugin of this build.
#pragma once

namespace shardc {

// An entry point of libshardc_cuda.so (plugin.h), which is loaded at the first call, after the
// libraries that it needs. Throws Diagnostic E4302 (exit 74).
void* FindInCudaPlugin(const char* name);

}  // namespace shardc
