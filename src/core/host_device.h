// Marks the small functions that host code and CUDA kernels share.
#pragma once

#ifdef __CUDACC__
#define LINATTN_HOST_DEVICE __host__ __device__
#else
#define LINATTN_HOST_DEVICE
#endif
