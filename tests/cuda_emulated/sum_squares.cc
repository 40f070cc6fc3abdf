// The kernels for the CPU (runtime/cuda/kernels/emulation.h).
#include "runtime/cuda/kernels/sum_squares.cu"
