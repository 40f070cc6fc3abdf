// The kernels of one level in one table: SHARDC_LEVEL_TABLE(v3) defines v3::Table(). For the
// levels_*.cc files, one of which knows the levels of the processor that is compiled for.
#ifndef RUNTIME_CPU_KERNELS_LEVEL_TABLES_H_
#define RUNTIME_CPU_KERNELS_LEVEL_TABLES_H_

#include "runtime/cpu/kernels/kernel_table.h"

#define SHARDC_LEVEL_TABLE(isa)                                                                \
  namespace isa {                                                                              \
  extern const AttentionKernels kAttentionKernels;                                             \
  extern const CastKernels kCastKernels;                                                       \
  extern const CrossEntropyKernels kCrossEntropyKernels;                                       \
  extern const DropoutKernels kDropoutKernels;                                                 \
  extern const ElementwiseKernels kElementwiseKernels;                                         \
  extern const EmbeddingKernels kEmbeddingKernels;                                             \
  extern const FusedElementwiseKernels kFusedElementwiseKernels;                               \
  extern const NormKernels kNormKernels;                                                       \
  extern const OptimizerKernels kOptimizerKernels;                                             \
  extern const ReduceKernels kReduceKernels;                                                   \
  extern const RotaryKernels kRotaryKernels;                                                   \
  extern const RowProductKernels kRowProductKernels;                                           \
  extern const SoftmaxKernels kSoftmaxKernels;                                                 \
  static KernelTable Table() {                                                                 \
    return {kAttentionKernels,   kCastKernels,      kCrossEntropyKernels,     kDropoutKernels, \
            kElementwiseKernels, kEmbeddingKernels, kFusedElementwiseKernels, kNormKernels,    \
            kOptimizerKernels,   ProductKernels{},  kReduceKernels,           kRotaryKernels,  \
            kRowProductKernels,  kSoftmaxKernels};                                             \
  }                                                                                            \
  }

#endif  // RUNTIME_CPU_KERNELS_LEVEL_TABLES_H_
