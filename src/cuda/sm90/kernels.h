// Kernel addresses by table row, so that only the .cu files see the kernels.
#pragma once

namespace linattn::cuda::sm90 {

struct Kernel {
  const void* address;
  int threads, shared_bytes;
};

// Rows: type of q, update.
Kernel cut_kernel_of(bool delta);
Kernel prepare_kernel_of(bool bf16, bool delta, int warps);  // threads, bytes for `warps` warps
// Of gates a channel; anchored: bounded by -5.
Kernel prepare_channel_kernel_of(bool delta, bool anchored);
Kernel scan_kernel_of(bool bf16, bool delta, bool channel);

}  // namespace linattn::cuda::sm90
