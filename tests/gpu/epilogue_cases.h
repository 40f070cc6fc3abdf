// Small programs with one group of a product and what a library may do along with it, for each
// epilogue. Tried with the emulation on the CPU and with cuBLASLt on a GPU.
#pragma once

#include <string>
#include <vector>

#include "runtime/cuda/epilogue_kernel.h"
#include "tests/gpu/kernel_cases.h"

namespace shardc::testing {

struct EpilogueCase {
  std::string name;
  cuda::Epilogue epilogue;
  std::string graph;  // text
};
// Odd and even sizes, products of one and several leading dims, all transposes.
std::vector<EpilogueCase> EpilogueCases(DType dtype);

// Looks for the case's group, and tries the library's product beside the separate kernels: what the
// trial notes ("0 differs: ...", "1 0.01 ms, ...").
std::string TryEpilogue(KernelMachine& machine, cuda::EpilogueLibrary& library,
                        const EpilogueCase& c);

}  // namespace shardc::testing
