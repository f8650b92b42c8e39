// Kernel addresses by table row, so that only the .cu files see the kernels.
#pragma once

namespace linattn::cuda {

// Rows: type of q, K rounded up to 64, 128 or 256, gate per channel or per token.
struct ChunkKernel {
  const void* address;
  int shared_bytes;  // dynamic; of the scan: of one CTA with `warps` warps
};

ChunkKernel chunk_prepare_kernel(bool bf16, int dim, bool channel);
ChunkKernel chunk_scan_kernel_delta(bool bf16, int dim, bool channel, int warps);     // to 128
ChunkKernel chunk_scan_kernel_additive(bool bf16, int dim, bool channel, int warps);  // to 128
ChunkKernel chunk_scan_kernel_wide(bool delta, bool bf16, bool channel, int warps);   // 256
ChunkKernel chunk_index_kernel();

}  // namespace linattn::cuda
