// Kernel addresses by table row, so that only the .cu files see the kernels.
#pragma once

namespace linattn::cuda {

// Rows: type of q, K rounded up to 64, 128 or (16-bit types) 256, gate per channel or per token.
struct ChunkKernel {
  const void* address;
  int shared_bytes;  // dynamic
};

struct ChunkScanShape {
  int groups;  // of 16 value columns, a CTA
  int parts;   // warps that share a group: 1, or 2 with half of the key channels each
  int stages;  // chunks in shared memory
  int threads() const { return groups * parts * 32; }
};

ChunkKernel chunk_prepare_kernel(bool bf16, int dim, bool channel);
// K to 128, and 256, which always has two parts.
ChunkKernel chunk_scan_kernel_delta(bool bf16, int dim, bool channel, const ChunkScanShape& shape);
ChunkKernel chunk_scan_kernel_additive(bool bf16, int dim, bool channel,
                                       const ChunkScanShape& shape);
ChunkKernel chunk_scan_kernel_wide(bool delta, bool bf16, bool channel,
                                   const ChunkScanShape& shape);
// fp32: K to 128, and one number of parts for all.
inline constexpr int kF32Parts = 2;
ChunkKernel chunk_prepare_kernel_f32(int dim, bool channel);
ChunkKernel chunk_scan_kernel_f32(bool delta, int dim, bool channel, const ChunkScanShape& shape);
ChunkKernel chunk_index_kernel();

}  // namespace linattn::cuda
