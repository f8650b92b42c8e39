// States that CTAs hand to each other through global memory: where a scan's first state comes from,
// where its last one goes, and the merge of maps.
#pragma once

#include "cuda/portable/chunk.cuh"
#include "cuda/ptx/flags.cuh"
#include "cuda/ptx/wgmma.cuh"
#include "cuda/sm90/scan.load.cuh"

namespace linattn::cuda::sm90 {

// Calls f(element, offset) for each of the thread's elements of S^T; `offset` is that of (k 0, v0).
template <class F>
__device__ __forceinline__ void for_state(const StateView& view, int64_t offset, float (&s)[64],
                                          F&& f) {
  const int thread = thread_of_warpgroup();
  int64_t at = offset + (thread / 32 * 16 + thread % 32 / 4) * view.v + thread % 4 * 2 * view.k;
#pragma unroll
  for (int j = 0; j < kDim / 8; ++j, at += 8 * view.k)
#pragma unroll
    for (int e = 0; e < 4; ++e) f(s[4 * j + e], at + (e & 1) * view.k + (e / 2) * 8 * view.v);
}

__device__ __forceinline__ void store_state(const StateView& view, void* data, int64_t offset,
                                            float (&s)[64], float scale) {
  for_state(view, offset, s,
            [&](float x, int64_t at) { store_element(view.type, data, at, x * scale); });
}

// A warpgroup's accumulators as they are: [element / 4][thread][4].
__device__ __forceinline__ void load_image(const float* from, float (&s)[64]) {
  const float4* at = reinterpret_cast<const float4*>(from) + thread_of_warpgroup();
#pragma unroll
  for (int i = 0; i < 16; ++i) {
    const float4 four = at[i * kWarpgroup];
    s[4 * i] = four.x, s[4 * i + 1] = four.y, s[4 * i + 2] = four.z, s[4 * i + 3] = four.w;
  }
}

__device__ __forceinline__ void store_image(float* to, const float (&s)[64], float scale) {
  float4* at = reinterpret_cast<float4*>(to) + thread_of_warpgroup();
#pragma unroll
  for (int i = 0; i < 16; ++i)
    at[i * kWarpgroup] = make_float4(s[4 * i] * scale, s[4 * i + 1] * scale, s[4 * i + 2] * scale,
                                     s[4 * i + 3] * scale);
}

// By a whole state warpgroup, whose threads meet at a barrier of their own.
__device__ __forceinline__ void meet() { ptx::sync_named(1 + slab_of_warpgroup(), kWarpgroup); }
__device__ __forceinline__ void await(const uint32_t* counter, uint32_t count) {
  if (thread_of_warpgroup() == 0) ptx::wait_for_count(counter, count);
  meet();
}
__device__ __forceinline__ void tell(uint32_t* counter) {
  meet();
  if (thread_of_warpgroup() == 0) ptx::count_up(counter);
}

// States are numbered place by place, and in it by slab.
__device__ __forceinline__ void load_handed(const ScanParams& p, int64_t state, float (&s)[64]) {
  await(p.cuts.ready + state, 1);
  load_image(p.cuts.states + state * kStateFloats, s);
}

__device__ __forceinline__ void hand_over(const ScanParams& p, int64_t state, const float (&s)[64],
                                          float scale) {
  store_image(p.cuts.states + state * kStateFloats, s, scale);
  tell(p.cuts.ready + state);
}

__device__ __forceinline__ void start_state(const ScanParams& p, const Chain& c, int slab,
                                            float (&s)[64]) {
#pragma unroll
  for (int i = 0; i < 64; ++i) s[i] = 0.0f;
  if (c.loads) {
    const StateView& view = p.problem.initial_state;
    for_state(view, view.at(c.slot, c.hv, 0, c.v0 + slab * kSlab), s,
              [&](float& x, int64_t at) { x = load_element(view.type, p.args.initial_state, at); });
  } else if (c.handed) {
    load_handed(p, (c.place - p.heads_v.divisor) * kSlabs + slab, s);
  } else if (c.map) {
    const int thread = thread_of_warpgroup(),
              row = slab * kSlab + thread / 32 * 16 + thread % 32 / 4;
#pragma unroll
    for (int i = 0; i < 64; ++i)
      s[i] = i / 4 * 8 + thread % 4 * 2 + i % 2 == row + i % 4 / 2 * 8 ? 1.0f : 0.0f;
  }
}

// x0, x1 as sums of two bf16 numbers.
__device__ __forceinline__ uint2 split_pair(float x0, float x1) {
  uint2 two;
  chunk::pack_split<true>(x0, x1, two.x, two.y);
  return two;
}

// The state of a map: rows are its columns.
__device__ __forceinline__ void store_map(char* tiles, const float (&s)[64], float scale) {
  const int thread = thread_of_warpgroup(), row = thread / 32 * 16 + thread % 32 / 4;
#pragma unroll
  for (int j = 0; j < kDim / 8; ++j)
#pragma unroll
    for (int side = 0; side < 2; ++side) {
      const uint2 two = split_pair(s[4 * j + 2 * side] * scale, s[4 * j + 2 * side + 1] * scale);
      char* at = tiles + MapTile::at(row + 8 * side, 8 * j + thread % 4 * 2);
      *reinterpret_cast<uint32_t*>(at) = two.x;
      *reinterpret_cast<uint32_t*>(at + MapTile::kTileBytes) = two.y;
    }
}

// Of the additive update's map the diagonal: what the thread's channel decays by.
template <bool kChannel>
__device__ __forceinline__ float decay_of(const ScanParams& p, const Chain& c) {
  float decay = 1.0f;
#pragma unroll 4
  for (int i = c.begin; i < c.end; ++i) {
    const auto& record = *record_of<kChannel>(p, c, i);
    if constexpr (kChannel)
      decay *= record.decay[thread_of_warpgroup()];
    else
      decay *= record.decay;
  }
  return decay;
}

// The last state of a segment, which is `scale` times s, for the segment behind it; or a part of
// its map.
template <bool kDelta, bool kChannel>
__device__ __forceinline__ void leave_state(const ScanParams& p, const Chain& c, int slab,
                                            const float (&s)[64], float scale) {
  const int64_t state = c.place * kSlabs + slab;
  if (c.own < c.end) return hand_over(p, state, s, scale);
  if (c.map) {
    store_map(p.cuts.maps + c.place * kMapBytes + slab * 2 * MapTile::kTileBytes, s, scale);
  } else {
    store_image(p.cuts.states + state * kStateFloats, s, scale);
    if (!kDelta && slab == 0)
      reinterpret_cast<float*>(p.cuts.maps)[c.place * kDim + thread_of_warpgroup()] =
          decay_of<kChannel>(p, c);
  }
  ptx::fence_async_proxy_everywhere();  // the copy engine reads it
  tell(p.cuts.built + c.place);
}

// Segments from `place` on, of `left`, whose maps are there; at least one, at most 32. By a warp.
__device__ __forceinline__ int await_maps(const ScanParams& p, int64_t place, int left) {
  const int lane = lane_of_warp();
  const uint32_t* built = p.cuts.built + place + static_cast<int64_t>(lane) * p.heads_v.divisor;
  int there = 0;
#pragma unroll 1
  while (there == 0) {
    const bool missing = lane >= left || ptx::count_of(built) < 2 * kSlabs;
    const unsigned all = __ballot_sync(ptx::kAllLanes, missing);
    there = all == 0 ? 32 : __ffs(static_cast<int>(all)) - 1;
    if (there == 0) ptx::pause();
  }
  ptx::fence_async_proxy_everywhere();
  return there;
}

// Of the n-th segment of a merge's run: where its M and N lie in shared memory, and barriers.
struct MergeStage {
  uint32_t maps, rest;
  uint32_t full, empty;   // M and N
  uint32_t stored, told;  // the state behind the segment
  uint32_t phase;
  static constexpr int kBarriers = 4;
  __device__ __forceinline__ MergeStage(uint32_t shared, uint32_t barriers, int n)
      : maps(shared + n % kMergeStages * kMapBytes),
        rest(shared + kRestAt + n % kMergeStages * kStateFloats * 4),
        full(barriers + n % kMergeStages * kBarriers * 8),
        empty(full + 8),
        stored(full + 16),
        told(full + 24),
        phase(n / kMergeStages & 1) {}
  __device__ __forceinline__ void init() const {
    ptx::init_barrier(full, 1), ptx::init_barrier(empty, 4);
    ptx::init_barrier(stored, 4), ptx::init_barrier(told, 1);
  }
};
static_assert(kMergeStages * MergeStage::kBarriers <= Layout<false>::kBarriers &&
              kMergeStages * MergeStage::kBarriers <= Layout<true>::kBarriers);

// The loading warp of a merge.
__device__ __forceinline__ void load_maps(const ScanParams& p, const Chain& c, int slab,
                                          uint32_t shared, uint32_t barriers) {
  int64_t place = c.place;
  int there = 0;
#pragma unroll 1
  for (int segment = c.begin; segment < c.end; ++segment) {
    const MergeStage at(shared, barriers, segment - c.begin);
    place += p.heads_v.divisor;
    if (there == 0) there = await_maps(p, place, c.end - segment);
    --there;
    if (lane_of_warp() != 0) continue;
    ptx::wait(at.empty, at.phase ^ 1);
    ptx::expect_bytes(at.full, kStateFloats * 4 + kMapBytes);
    ptx::copy_bytes(at.rest, p.cuts.states + (place * kSlabs + slab) * kStateFloats,
                    kStateFloats * 4, at.full);
    ptx::copy_bytes(at.maps, p.cuts.maps + place * kMapBytes, kMapBytes, at.full);
  }
}

// Another warp tells of the states, because the fence takes as long as a segment's products.
__device__ __forceinline__ void tell_merged(const ScanParams& p, const Chain& c, int slab,
                                            uint32_t shared, uint32_t barriers) {
  if (lane_of_warp() != 0) return;
  int64_t place = c.place;
#pragma unroll 1
  for (int segment = c.begin; segment < c.end; ++segment) {
    const MergeStage at(shared, barriers, segment - c.begin);
    place += p.heads_v.divisor;
    ptx::wait(at.stored, at.phase);
    ptx::count_up(p.cuts.ready + place * kSlabs + slab);
    ptx::arrive(at.told);
  }
}

// A run of segments of the delta update: S^T = S^T M^T + N^T, S and M as sums of two bf16 numbers,
// of whose products the smallest is left out.
__device__ __forceinline__ void merge_maps(const ScanParams& p, const Chain& c, int slab,
                                           char* shared, uint32_t barriers) {
  float s[64];
  load_handed(p, c.place * kSlabs + slab, s);
  int64_t place = c.place;
#pragma unroll 1
  for (int segment = c.begin; segment < c.end; ++segment) {
    const MergeStage at(0, barriers, segment - c.begin);
    place += p.heads_v.divisor;
    uint32_t high[8][4], low[8][4];
#pragma unroll
    for (int i = 0; i < 32; ++i) {
      const uint2 two = split_pair(s[2 * i], s[2 * i + 1]);
      high[i / 4][i % 4] = two.x, low[i / 4][i % 4] = two.y;
    }
    ptx::wait(at.full, at.phase);
    load_image(reinterpret_cast<const float*>(shared + at.rest), s);
    const uint32_t maps = ptx::shared_address(shared) + at.maps;
    ptx::pin(high), ptx::pin(low), ptx::pin(s);
    ptx::fence_wgmma();
#pragma unroll
    for (int step = 0; step < 8; ++step) {
      const uint32_t tile = maps + step / 4 * 2 * MapTile::kTileBytes;
      const uint64_t first = tile::mn_major<MapTile>(tile, step % 4);
      const uint64_t second = tile::mn_major<MapTile>(tile + MapTile::kTileBytes, step % 4);
      ptx::wgmma_k16_transposed<true, true>(s, high[step], first);
      ptx::wgmma_k16_transposed<true, true>(s, low[step], first);
      ptx::wgmma_k16_transposed<true, true>(s, high[step], second);
    }
    ptx::commit_wgmma();
    ptx::wait_wgmma<0>();
    ptx::pin(s);
    if (lane_of_warp() == 0) ptx::arrive(at.empty);
    store_image(p.cuts.states + (place * kSlabs + slab) * kStateFloats, s, 1.0f);
    ptx::wait(at.told, at.phase ^ 1);
    __syncwarp();
    if (lane_of_warp() == 0) ptx::arrive(at.stored);
  }
}

// Of the additive update: S^T = S^T diag(decays) + N^T.
__device__ __forceinline__ void merge_decays(const ScanParams& p, const Chain& c, int slab) {
  float s[64], rest[64];
  load_handed(p, c.place * kSlabs + slab, s);
  int64_t place = c.place;
#pragma unroll 1
  for (int segment = c.begin; segment < c.end; ++segment) {
    place += p.heads_v.divisor;
    await(p.cuts.built + place, kSlabs);
    const auto* decays = reinterpret_cast<const float2*>(p.cuts.maps) + place * (kDim / 2);
    load_image(p.cuts.states + (place * kSlabs + slab) * kStateFloats, rest);
#pragma unroll
    for (int j = 0; j < kDim / 8; ++j) {
      const float2 decay = decays[4 * j + lane_of_warp() % 4];
#pragma unroll
      for (int e = 0; e < 4; ++e)
        s[4 * j + e] = fmaf(e & 1 ? decay.y : decay.x, s[4 * j + e], rest[4 * j + e]);
    }
    hand_over(p, place * kSlabs + slab, s, 1.0f);
  }
}

}  // namespace linattn::cuda::sm90
