// Instructions next to each other that one kernel does together. A step has hundreds of updates,
// casts and sums of squares, most of tensors that a GPU reads in less time than a launch takes. The
// plan is the same for all backends, keeps the order in which collectives overlap them, and is
// sharded before anything is joined: so they are found in the program. Plain host code: the same
// for every rank of a stage, because it looks at the body only.
#pragma once

#include <functional>
#include <memory>
#include <span>

#include "ir/program.h"
#include "runtime/cuda/cuda_kernel.h"

namespace shardc::cuda {

// Each is compared with all of its run, and scalars are held in shared memory.
inline constexpr size_t kMostJoined = 512;

// Whether the kernel of `run`, instructions in the order in which they would run, can do
// instruction `next` too, at most kMostJoined in all. A run is
//   - adamw, sgd or cast, of equal types, none of which touches what another writes; updates with
//     the same scalars and attributes, but for the weight decay; or
//   - sum_squares, and behind them more of them, and additions and casts of scalar floats. Of what
//     the run writes only these scalars are read in it.
// Neither has padding to care for, but that of what is squared, which its kernel leaves out.
bool Joins(const Program& program, std::span<const int> run, int next);

// One kernel that leaves the same bytes as the kernels of such a run one after the other; null when
// there is none.
using JoinedKernelMaker =
    std::function<std::unique_ptr<CudaKernel>(std::span<const KernelRequest> run)>;
std::unique_ptr<CudaKernel> MakeJoinedKernel(std::span<const KernelRequest> run);

}  // namespace shardc::cuda
