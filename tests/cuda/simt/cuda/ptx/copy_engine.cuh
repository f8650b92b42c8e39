// Host stand-in for src/cuda/ptx/copy_engine.cuh. Announced bytes hold the phase open until copies
// have brought them; since copies come at once, the announcement itself waits for them.
#pragma once

#include <cuda.h>

#include <cstring>

#include "barrier.cuh"
#include "copy.cuh"

namespace linattn::cuda::ptx {

// Bytes still announced, by barrier; one thread at a time announces.
inline int outstanding[simt::kSharedBytes / 8] = {};

inline void expect_bytes(uint32_t barrier, int bytes) { outstanding[barrier / 8] = bytes; }

inline void brought(uint32_t barrier, int bytes) {
  int& left = outstanding[barrier / 8];
  if (bytes > left) simt::stop("more bytes come than were announced");
  left -= bytes;
  if (left == 0) arrive(barrier);
}

inline void copy_bytes(uint32_t to, const void* from, int bytes, uint32_t barrier) {
  if (to % 16 != 0 || bytes % 16 != 0 || reinterpret_cast<uintptr_t>(from) % 16 != 0)
    simt::stop("a bulk copy is not aligned");
  std::memcpy(simt::shared_memory + to, from, static_cast<size_t>(bytes));
  brought(barrier, bytes);
}

// 128-byte swizzle; what lies outside of the tensor is zero.
inline void copy_box(uint32_t to, const CUtensorMap& map, int c0, int c1, int c2, int c3,
                     uint32_t barrier) {
  const simt::Map& m = simt::map_of(map);
  if (to % 1024 != 0) simt::stop("a box is not aligned to 1024 bytes");
  for (int row = 0; row < m.box_tokens; ++row)
    for (int column = 0; column < 64; ++column) {
      const bool inside = c2 + row >= 0 && c2 + row < m.tokens && c0 + column < m.columns;
      const uint32_t plain = static_cast<uint32_t>(row * 128 + column * 2);
      simt::at_shared<uint16_t>(to + (plain ^ ((plain >> 7 & 7) << 4))) =
          inside ? m.data[c3 * m.batch_stride + (c2 + row) * m.token_stride + c1 * m.head_stride +
                          c0 + column]
                 : uint16_t{0};
    }
  brought(barrier, m.box_tokens * 128);
}

inline void store_bytes(void* to, uint32_t from, int bytes) {
  if (from % 16 != 0 || bytes % 16 != 0 || reinterpret_cast<uintptr_t>(to) % 16 != 0)
    simt::stop("a bulk store is not aligned");
  std::memcpy(to, simt::shared_memory + from, static_cast<size_t>(bytes));
}
inline void commit_stores() {}
inline void wait_stores_read() {}

}  // namespace linattn::cuda::ptx
