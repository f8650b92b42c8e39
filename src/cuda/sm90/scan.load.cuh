// The loading warp: k, q and v of each chunk into a ring of stages. Rows behind the sequence's end
// become zero, whatever lies there.
#pragma once

#include "cuda/portable/tensors.cuh"
#include "cuda/ptx/barrier.cuh"
#include "cuda/ptx/copy.cuh"
#include "cuda/ptx/copy_engine.cuh"
#include "cuda/ptx/warp.cuh"
#include "cuda/sm90/scan.layout.h"
#include "cuda/sm90/scan.params.h"

namespace linattn::cuda::sm90 {

// Read anew wherever they are asked: what is computed from them is then computed anew as well,
// instead of taking registers, which are short in every role.
__device__ __forceinline__ int thread_of_warpgroup() {
  return static_cast<int>(ptx::thread_of_cta() % kWarpgroup);
}
__device__ __forceinline__ int lane_of_warp() {
  return static_cast<int>(ptx::thread_of_cta() % 32);
}
// The first warpgroup loads.
__device__ __forceinline__ int slab_of_warpgroup() {
  return static_cast<int>(ptx::thread_of_cta() / kWarpgroup) - 1;
}

// A place in the ring of stages, and the parity of its barriers' phase.
template <int kStages>
struct Turn {
  int stage = 0;
  uint32_t phase = 0;
  __device__ __forceinline__ void next() {
    if (++stage == kStages) stage = 0, phase ^= 1;
  }
};

// Zeros in rows begin.. of a chunk's rows in a tile, by a warp.
template <class Tile>
__device__ __forceinline__ void zero_rows(char* tile, int first, int begin, int lane) {
  constexpr int kUnits = Tile::kTileBytes / Tile::kPanelBytes * 8;
  for (int i = begin * kUnits + lane; i < kChunk * kUnits; i += 32)
    *reinterpret_cast<uint4*>(tile + Tile::at(first + i / kUnits, i % kUnits * 8)) =
        make_uint4(0, 0, 0, 0);
}

// Rows that no tensor map can describe, element by element.
template <class Tile>
__device__ __forceinline__ void copy_rows(const void* data, int64_t offset, int64_t stride,
                                          int rows, char* tile, int first, int lane) {
  constexpr int kColumns = Tile::kTileBytes / Tile::kPanelBytes * Tile::kPanelColumns;
  const auto* from = static_cast<const uint16_t*>(data) + offset;
#pragma unroll 4
  for (int i = lane; i < rows * kColumns; i += 32)
    *reinterpret_cast<uint16_t*>(tile + Tile::at(first + i / kColumns, i % kColumns)) =
        from[i / kColumns * stride + i % kColumns];
}

template <bool kChannel>
__device__ __forceinline__ const typename Layout<kChannel>::Record* record_of(const ScanParams& p,
                                                                              const Chain& c,
                                                                              int chunk) {
  return static_cast<const typename Layout<kChannel>::Record*>(p.records) +
         (c.first_chunk + chunk) * p.heads_v.divisor + c.hv;
}

template <bool kChannel>
__device__ __forceinline__ void start_copies(const ScanParams& p, const Chain& c, char* at,
                                             int chunk, uint32_t barrier) {
  using Layout = Layout<kChannel>;
  const int token = static_cast<int>(c.range.begin) + chunk * kChunk;
  const int batch = static_cast<int>(c.range.batch);
  const uint32_t values = ptx::shared_address(at + Layout::kV);
  ptx::expect_bytes(barrier, Layout::kTiles + Layout::kRecordRead +
                                 (c.map ? 0 : Layout::kSlabs * ValuesTile::kTileBytes));
  if constexpr (!kChannel) {
    const int h = static_cast<int>(c.h);
    const uint32_t keys = ptx::shared_address(at + Layout::kKeys);
#pragma unroll
    for (int panel = 0; panel < 2; ++panel) {
      const uint32_t to = keys + panel * RowsTile::kPanelBytes;
      ptx::copy_box(to, p.k_map, panel * RowsTile::kPanelColumns, h, token, batch, barrier);
      ptx::copy_box(to + kChunk * tile::kSwizzleBytes, p.q_map, panel * RowsTile::kPanelColumns, h,
                    token, batch, barrier);
    }
  }
#pragma unroll
  for (int slab = 0; slab < Layout::kSlabs && !c.map; ++slab)
    ptx::copy_box(values + slab * ValuesTile::kTileBytes, p.v_map, c.v0 + slab * kSlab,
                  static_cast<int>(c.hv), token, batch, barrier);
  ptx::copy_bytes(ptx::shared_address(at + Layout::kRecord), record_of<kChannel>(p, c, chunk),
                  Layout::kRecordRead, barrier);
}

// Not inlined: ptxas then has the registers to keep the state's products in flight (C7511).
template <bool kChannel>
__device__ __noinline__ void copy_elements(const ScanParams& p, const Chain& c, char* at, int chunk,
                                           int rows, int lane) {
  using Layout = Layout<kChannel>;
  const Problem& problem = p.problem;
  const int64_t begin = c.range.begin + static_cast<int64_t>(chunk) * kChunk;
  if constexpr (!kChannel) {
    copy_rows<RowsTile>(p.args.k, problem.k.at(c.range.batch, begin, c.h), problem.k.t, rows,
                        at + Layout::kKeys, 0, lane);
    copy_rows<RowsTile>(p.args.q, problem.q.at(c.range.batch, begin, c.h), problem.q.t, rows,
                        at + Layout::kKeys, kChunk, lane);
  }
#pragma unroll 1
  for (int slab = 0; slab < Layout::kSlabs && !c.map; ++slab)
    copy_rows<ValuesTile>(p.args.v, problem.v.at(c.range.batch, begin, c.hv, c.v0 + slab * kSlab),
                          problem.v.t, rows, at + Layout::kV + slab * ValuesTile::kTileBytes, 0,
                          lane);
  const auto* record = reinterpret_cast<const uint4*>(record_of<kChannel>(p, c, chunk));
  for (int i = lane; i < Layout::kRecordRead / 16; i += 32)
    reinterpret_cast<uint4*>(at + Layout::kRecord)[i] = record[i];
}

template <bool kChannel>
__device__ __forceinline__ void zero_values(char* at, int begin, int lane) {
  for (int slab = 0; slab < Layout<kChannel>::kSlabs; ++slab)
    zero_rows<ValuesTile>(at + Layout<kChannel>::kV + slab * ValuesTile::kTileBytes, 0, begin,
                          lane);
}

// Full chunks come by the copy engine, which hands them over itself.
template <bool kChannel>
__device__ __forceinline__ void load_chunks(const ScanParams& p, const Chain& c, char* shared,
                                            uint32_t barriers) {
  using Layout = Layout<kChannel>;
  const uint32_t landed = barriers + 8 * Layout::kLanded;
  const int lane = lane_of_warp();
  Turn<Layout::kStages> turn;
#pragma unroll 1
  for (int chunk = c.begin; chunk < c.end; ++chunk, turn.next()) {
    const uint32_t full = barriers + 8 * (Layout::kFull + turn.stage);
    const int rows = c.rows(chunk);
    char* at = shared + turn.stage * Layout::kStageBytes;
    ptx::wait(barriers + 8 * (Layout::kEmpty + turn.stage), turn.phase ^ 1);
    if (c.map) {
      zero_values<kChannel>(at, 0, lane);
      __syncwarp();
    }
    if (p.vectors && rows == kChunk) {
      if (lane == 0) start_copies<kChannel>(p, c, at, chunk, full);
      continue;
    }
    // The last chunk, or one that no map describes.
    if (p.vectors) {
      if (lane == 0) start_copies<kChannel>(p, c, at, chunk, landed);
      ptx::wait(landed, 0);
    } else {
      copy_elements<kChannel>(p, c, at, chunk, rows, lane);
    }
    if constexpr (!kChannel) {
      zero_rows<RowsTile>(at + Layout::kKeys, 0, rows, lane);
      zero_rows<RowsTile>(at + Layout::kKeys, kChunk, rows, lane);
    }
    zero_values<kChannel>(at, rows, lane);
    ptx::fence_async_proxy();
    __syncwarp();
    if (lane == 0) ptx::arrive(full);
  }
}

}  // namespace linattn::cuda::sm90
