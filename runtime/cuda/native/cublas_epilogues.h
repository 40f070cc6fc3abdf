// cuBLASLt's epilogues on the GPU of the calling thread.
#pragma once

#include "runtime/cuda/epilogue_kernel.h"

namespace shardc::cuda {

// Null where the environment has SHARDC_NO_EPILOGUES.
EpilogueLibrary* CublasLtEpilogues();

}  // namespace shardc::cuda
