// The products by cuBLASLt, over the fake one: in place of those by loops.
#include <cublasLt.h>

// The emulation has its own.
#undef __global__
#undef __device__
#undef __host__
#undef __forceinline__
#undef __grid_constant__
#undef __launch_bounds__
#undef __shared__

#include "runtime/cuda/native/cublas_product.cu"
