// Plain host parts of the kernels, which otherwise only the CUDA plugin has.
#include "runtime/cuda/kernels/elementwise_walk.cc"
#include "runtime/cuda/kernels/geometry.cc"
#include "runtime/cuda/kernels/matmul_plan.cc"
