// What the state warpgroups of the scan leave to other warps: the tokens' factors, and the stores
// of O.
#pragma once

#include "cuda/ptx/special.cuh"
#include "cuda/sm90/scan.load.cuh"

namespace linattn::cuda::sm90 {

// Scales the factors of each chunk by the decays that have gathered (see Gathered), a lane a token.
template <bool kBf16>
__device__ __forceinline__ void gather_decays(const Chain& c, char* shared, uint32_t barriers) {
  using Layout = Layout<false>;
  const int lane = lane_of_warp();
  float before = 1.0f;
  Turn<Layout::kStages> turn;
#pragma unroll 1
  for (int chunk = c.begin; chunk < c.end; ++chunk, turn.next()) {
    char* tiles = shared + turn.stage * Layout::kStageBytes;
    ptx::wait(barriers + 8 * (Layout::kFull + turn.stage), turn.phase);
    Record& record = *reinterpret_cast<Record*>(tiles + Layout::kRecord);
    const float all = before * record.decay;
    const bool held = all >= (kBf16 ? kLeastGathered : kLeastGatheredF16) && all <= 1.0f;
    const float after = held ? all : 1.0f;
    record.read_k[lane] *= before;
    record.read_q[lane] *= before;
    record.write_k[lane] *= ptx::reciprocal(after);
    if (lane == 0)
      *reinterpret_cast<Gathered*>(tiles + Layout::kGathered) = {held ? 1.0f : all, before, after};
    __syncwarp();
    if (lane == 0) ptx::arrive(barriers + 8 * (Layout::kReady + turn.stage));
    before = after;
  }
}

// A slab of O from the place of V to global memory, which frees the stage.
template <bool kChannel>
__device__ __forceinline__ void store_outputs(const ScanParams& p, const Chain& c, int slab,
                                              char* shared, uint32_t barriers) {
  using Layout = Layout<kChannel>;
  constexpr int kUnits = kSlab / 8, kRowsATurn = 32 / kUnits, kTurns = kChunk / kRowsATurn;
  const int lane = lane_of_warp(), row = lane / kUnits, unit = lane % kUnits;
  const TokenView& view = p.problem.o;
  auto* to = static_cast<uint16_t*>(p.args.o) +
             view.at(c.range.batch, c.range.begin + static_cast<int64_t>(c.begin) * kChunk + row,
                     c.hv, c.v0 + slab * kSlab + unit * 8);
  Turn<Layout::kStages> turn;
#pragma unroll 1
  for (int chunk = c.begin; chunk < c.end; ++chunk, turn.next(), to += kChunk * view.t) {
    const char* tile =
        shared + turn.stage * Layout::kStageBytes + Layout::kV + slab * ValuesTile::kTileBytes;
    ptx::wait(barriers + 8 * (Layout::kWritten + slab * Layout::kStages + turn.stage), turn.phase);
    uint4 eights[kTurns];
#pragma unroll
    for (int i = 0; i < kTurns; ++i)
      eights[i] =
          *reinterpret_cast<const uint4*>(tile + tile::swizzled(row + i * kRowsATurn, unit));
    // What ordinary stores wrote there is behind the copy engine's next ones.
    ptx::fence_async_proxy();
    __syncwarp();
    if (lane == 0) ptx::arrive(barriers + 8 * (Layout::kEmpty + turn.stage));
    const int rows = chunk < c.own ? 0 : c.rows(chunk);
#pragma unroll
    for (int i = 0; i < kTurns; ++i) {
      if (row + i * kRowsATurn >= rows) continue;
      uint16_t* at = to + i * kRowsATurn * view.t;
      if (p.vectors) {
        *reinterpret_cast<uint4*>(at) = eights[i];
      } else {
        const uint32_t four[4] = {eights[i].x, eights[i].y, eights[i].z, eights[i].w};
#pragma unroll
        for (int e = 0; e < 8; ++e) at[e] = static_cast<uint16_t>(four[e / 2] >> (e % 2 * 16));
      }
    }
  }
}

}  // namespace linattn::cuda::sm90
