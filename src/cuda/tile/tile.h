// Tiles of shared memory as the tensor cores read them: one definition gives the address of an
// element and the descriptor of an operand. 128-byte swizzle throughout.
// https://docs.nvidia.com/cuda/parallel-thread-execution/#asynchronous-warpgroup-level-matrix-shared-memory-layout
#pragma once

#include <cstdint>

#include "core/host_device.h"

namespace linattn::cuda::tile {

inline constexpr int kSwizzleBytes = 128;
inline constexpr int kAlignment = 1024;  // of a tile: eight rows of 128 bytes, the swizzle's period

// Byte of 16-byte unit `unit` of row `row` in a panel of rows of 128 bytes.
LINATTN_HOST_DEVICE constexpr int swizzled(int row, int unit) {
  return row * kSwizzleBytes + ((unit ^ (row & 7)) << 4);
}

// kRows rows of kColumns elements of kBytes each, as panels of 128 bytes a row next to each other.
template <int kRows, int kColumns, int kBytes>
struct Tile {
  static constexpr int kPanelColumns = kSwizzleBytes / kBytes;
  static constexpr int kPanelBytes = kRows * kSwizzleBytes;
  static constexpr int kTileBytes = kColumns / kPanelColumns * kPanelBytes;
  static constexpr int kUnit = 16 / kBytes;  // elements of 16 bytes
  static_assert(kRows % 8 == 0 && kColumns % kPanelColumns == 0);

  LINATTN_HOST_DEVICE static constexpr int at(int row, int column) {
    return column / kPanelColumns * kPanelBytes + swizzled(row, column % kPanelColumns / kUnit) +
           column % kUnit * kBytes;
  }
};

// Descriptor of an operand that begins at byte `address` of shared memory. `leading` is the
// distance of neighbouring panels (read for MN-major operands of more than one), `stride` that of
// neighbouring groups of eight rows.
LINATTN_HOST_DEVICE constexpr uint64_t descriptor(uint32_t address, int leading, int stride) {
  constexpr uint64_t kSwizzle128 = 1;
  return static_cast<uint64_t>((address & 0x3ffff) >> 4) |
         static_cast<uint64_t>(leading >> 4) << 16 | static_cast<uint64_t>(stride >> 4) << 32 |
         kSwizzle128 << 62;
}

// Rows are M or N, columns k: 32 bytes of k an instruction, four instructions a panel.
template <class T>
LINATTN_HOST_DEVICE constexpr uint64_t k_major(uint32_t tile, int row0, int step) {
  return descriptor(tile, 16, 8 * kSwizzleBytes) +
         ((step / 4 * T::kPanelBytes + row0 * kSwizzleBytes + step % 4 * 32) >> 4);
}

// Rows are k, columns M or N: 16 rows of 16-bit elements an instruction.
template <class T>
LINATTN_HOST_DEVICE constexpr uint64_t mn_major(uint32_t tile, int step) {
  return descriptor(tile, T::kPanelBytes, 8 * kSwizzleBytes) + (step * 16 * kSwizzleBytes >> 4);
}

}  // namespace linattn::cuda::tile
