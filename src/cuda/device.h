// The current device for the span of a call, and CUDA errors as the library's own.
#pragma once

#include <cuda_runtime_api.h>

#include "core/status.h"

namespace linattn::cuda {

// Makes `index` current; the destructor gives back what was current before.
class DeviceGuard {
 public:
  explicit DeviceGuard(int index);
  ~DeviceGuard();
  DeviceGuard(const DeviceGuard&) = delete;
  DeviceGuard& operator=(const DeviceGuard&) = delete;
  cudaError_t error() const { return error_; }

 private:
  int previous_ = -1;  // -1: nothing to give back
  cudaError_t error_ = cudaSuccess;
};

// LINATTN_DEVICE_FAILURE with CUDA's name and text of `error` and the launch it came from; also
// clears the runtime's record of it, which is nobody else's to find.
Status device_failure(cudaError_t error, const char* launch, int device);

struct LaunchShape {
  const char* name;
  int64_t grid;
  int block;
  bool overlaps_previous;  // programmatic dependent launch
  int shared_bytes = 0;    // dynamic
};

// At plan time: loads the kernel's module, which would otherwise happen inside the first launch,
// perhaps under graph capture, and allows its dynamic shared memory. A failure comes back at the
// launch, with its text.
void prepare_kernel(const void* kernel, int shared_bytes, int device);

Status launch(const LaunchShape& shape, const void* kernel, const void* params, int device,
              void* stream);

}  // namespace linattn::cuda
