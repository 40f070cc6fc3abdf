// One table with every vector kernel, one instance per instruction set, chosen once per process.
//
// The headers of the families (norm.h, attention.h, ...) hold the contracts; a call reads
//   Kernels().norm.layer_norm_forward({.x = x, ...}, threads);
// For all of them: tensors are dense row-major f32 unless said otherwise, pointers need the
// alignment of their element only, sizes may be zero, and `threads` is the size of the OpenMP team
// of the calling thread. The same call with the same `threads` gives the same bits.
#ifndef RUNTIME_CPU_KERNELS_KERNEL_TABLE_H_
#define RUNTIME_CPU_KERNELS_KERNEL_TABLE_H_

#include "runtime/cpu/kernels/attention.h"
#include "runtime/cpu/kernels/cast.h"
#include "runtime/cpu/kernels/cross_entropy.h"
#include "runtime/cpu/kernels/dropout.h"
#include "runtime/cpu/kernels/elementwise.h"
#include "runtime/cpu/kernels/embedding.h"
#include "runtime/cpu/kernels/fused_elementwise.h"
#include "runtime/cpu/kernels/isa.h"
#include "runtime/cpu/kernels/norm.h"
#include "runtime/cpu/kernels/optimizer.h"
#include "runtime/cpu/kernels/product.h"
#include "runtime/cpu/kernels/reduce.h"
#include "runtime/cpu/kernels/rotary.h"
#include "runtime/cpu/kernels/row_product.h"
#include "runtime/cpu/kernels/softmax.h"

namespace shardc::cpu {

struct KernelTable {
  AttentionKernels attention;
  CastKernels cast;
  CrossEntropyKernels cross_entropy;
  DropoutKernels dropout;
  ElementwiseKernels elementwise;
  EmbeddingKernels embedding;
  FusedElementwiseKernels fused_elementwise;
  NormKernels norm;
  OptimizerKernels optimizer;
  ProductKernels product;
  ReduceKernels reduce;
  RotaryKernels rotary;
  RowProductKernels row_product;
  SoftmaxKernels softmax;
};

// The table of the best level this machine has. The environment variable SHARDC_ISA (v1, v3, v4,
// bf16, amx) can lower it.
const KernelTable& Kernels();

// The table of one level; the machine must support it to call what is in it. Empty for levels of
// another processor than was compiled for.
const KernelTable& KernelsFor(Isa isa);

}  // namespace shardc::cpu

#endif  // RUNTIME_CPU_KERNELS_KERNEL_TABLE_H_
