// The tile of a state that one team of warps holds: which lane has what, and its reads and writes.
#pragma once

#include <cstdint>

#include "cuda/portable/decode.config.h"
#include "cuda/portable/decode.io.cuh"
#include "cuda/portable/decode.params.h"
#include "cuda/ptx/math.cuh"

namespace linattn::cuda::decode {

__device__ __forceinline__ uint32_t divide(uint32_t x, const FastDivisor& d) {
  return (__umulhi(x, d.magic) + x) >> d.shift;
}

// `lane` counts through the warps of a team; lanes along V are neighbours, so that K-first rows are
// read in long segments.
template <int kVariant, int kShape>
struct Tile {
  static constexpr DecodeVariant variant = decode_variant(kVariant);
  static constexpr DecodeShape shape = kDecodeShapes[kShape];
  static constexpr bool kVFirst = variant.v_first, kExact = shape.dim > 0;
  static constexpr bool kTogether = shape.together;
  static constexpr bool kVectors = variant.state != kStateAny;
  // Only the exact tiles are compiled for each update and gate; the others hold the larger of both
  // and look the problem's up.
  static constexpr bool kSwitches = !kExact;
  static constexpr int kLanesV = shape.lanes_v, kLanesK = shape.lanes_k(), kWarpsK = shape.warps_k;
  static constexpr int kColumns = shape.columns, kChannels = shape.channels;
  static constexpr int kTileV = shape.tile_v(), kCapacity = shape.capacity_k();
  static constexpr int kTeams = shape.teams, kWarps = shape.threads() / 32;
  // Elements of one access of the state: 16 bytes where the tile has them.
  static constexpr int kVector =
      kExact && variant.state != kStateF32 && (kVFirst ? kChannels : kColumns) % 8 == 0 ? 8 : 4;
  static constexpr int kChunk = kVFirst ? kVector : 4;  // neighbouring channels of a lane
  // Both sums of a column, k.S and q.S, next to each other; the additive update needs the latter.
  static constexpr int kPerColumn = variant.delta ? 2 : 1;
  static constexpr int kSums = kPerColumn * kColumns;
  // Sums that end in a lane, and columns whose outputs it computes.
  static constexpr int kHeld = kSums > kLanesK ? kSums / kLanesK : 1;
  static constexpr int kOwned = kColumns > kLanesK ? kColumns / kLanesK : 1;
  // Lanes with all the channels to themselves read q, k and the gates of their own; otherwise each
  // of the 32 reads a part, evaluates its gates and hands over in shared memory.
  static constexpr bool kHandsOver = kLanesK < 32 || kTogether;
  static constexpr int kRead = kHandsOver ? (kCapacity + 127) / 128 * 4 : kChannels;
  static constexpr bool kReadsAll = kExact && (!kHandsOver || kCapacity % 128 == 0);
  // Values of the token that a lane reads: those of its own columns, or a part of the CTA's.
  static constexpr int kTogetherV = kTeams * kTileV;
  static constexpr int kValues = kTogether ? (kTogetherV + 31) / 32 : kOwned;

  static_assert(kChannels % 4 == 0 && (kVFirst || kColumns % 4 == 0), "accesses of four");
  static_assert((kSums & (kSums - 1)) == 0, "sums are halved");
  static_assert(!kExact || kCapacity == shape.dim, "K = dim");
  static_assert(kWarpsK == 1 || (shape.teams == 1 && kHandsOver), "one team at the CTA's barrier");
  static_assert(!kTogether || (kExact && shape.dim % kTogetherV == 0 && kCapacity % 128 == 0),
                "teams of one state");

  static __device__ __forceinline__ int lane_v(int lane) { return lane & (kLanesV - 1); }
  static __device__ __forceinline__ int lane_k(int lane) {
    return static_cast<int>(static_cast<unsigned>(lane) / kLanesV);
  }
  static __device__ __forceinline__ int channel(int lane, int c) {
    return c / kChunk * (kChunk * kLanesK * kWarpsK) + lane_k(lane) * kChunk + c % kChunk;
  }
  static __device__ __forceinline__ int column(int lane, int r) {
    return kVFirst ? r * kLanesV + lane_v(lane) : lane_v(lane) * kColumns + r;
  }
  static __device__ __forceinline__ int read_channel(int lane, int c) {
    return kHandsOver ? c / 4 * 128 + (lane & 31) * 4 + c % 4 : channel(lane, c);
  }
  // Distance of the values that a lane reads.
  static __device__ __forceinline__ int value_step(int i) {
    return kTogether ? 32 * i : column(0, i);
  }
  static __device__ __forceinline__ bool reads_value(int lane, int i) {
    return !kTogether || kTogetherV % 32 == 0 || (lane & 31) + 32 * i < kTogetherV;
  }
  // First of the columns whose sums end in this lane.
  static __device__ __forceinline__ int owned_column(int lane) {
    return lane_k(lane & 31) * kColumns / kLanesK;
  }
  // Of the lanes that end with the same sums, the one that writes the output.
  static __device__ __forceinline__ bool writes(int lane) {
    return lane < 32 && (kColumns >= kLanesK || lane_k(lane) % (kLanesK / kColumns) == 0);
  }
  static __device__ __forceinline__ int state_type(int at_run_time) {
    if constexpr (variant.state == kStateF32) return LINATTN_F32;
    if constexpr (variant.state == kStateBf16) return LINATTN_BF16;
    return at_run_time;
  }
  // How many of the elements from (k, v) on, along the contiguous axis, exist.
  static __device__ __forceinline__ int valid(const DecodeParams& p, int k, int v) {
    if constexpr (kExact) return kVector;
    if constexpr (kVFirst) return v < p.dim_v ? p.dim_k - k : 0;
    return k < p.dim_k ? p.dim_v - v : 0;
  }
};

// Gates and beta of exact tiles are fp32 or bf16: two branches where three became a jump table.
template <class T>
__device__ __forceinline__ int side_type(int type) {
  return T::kExact && type != LINATTN_F32 ? LINATTN_BF16 : type;
}

// index * stride. Exact tiles promise strides below 2^31 bytes, which makes it one instruction
// instead of four; the product has 64 bits either way.
template <class T>
__device__ __forceinline__ int64_t scaled(int index, int64_t stride) {
  if constexpr (T::kExact) return ptx::mad_wide(index, static_cast<int32_t>(stride), 0);
  return index * stride;
}

// Place of token t of the sequence that begins at `first`, plus `lane` bytes.
template <class T>
__device__ __forceinline__ int64_t token_offset(const TokenStride& stride,
                                                const ShortTokenStride& brief, int first, int t,
                                                int h, int lane) {
  if constexpr (T::kExact)
    return ptx::mad_wide(first, brief.first, ptx::mad_wide(h, brief.h, lane));
  return first * stride.first + t * stride.t + h * stride.h + lane;
}

template <class T>
__device__ __forceinline__ int64_t state_offset(const StateStride& stride, int64_t n, int hv) {
  if constexpr (T::kExact)
    return ptx::mad_wide(static_cast<int>(n), static_cast<int32_t>(stride.n),
                         ptx::mad_wide(hv, static_cast<int32_t>(stride.h), 0));
  return n * stride.n + hv * stride.h;
}

template <class T>
using State = float[T::kColumns][T::kChannels];

// f(column of the first element, its channel, offset in bytes, valid elements) for every access.
template <class T, class F>
__device__ __forceinline__ void for_each_access(const DecodeParams& p, int lane, int v0, int stride,
                                                int type, F&& f) {
  const int size = size_of(type);
  const int row = T::kExact ? T::shape.dim * size : stride;
  constexpr int kColumnStep = T::kVFirst ? 1 : T::kVector;
  constexpr int kChannelStep = T::kVFirst ? T::kVector : 1;
#pragma unroll
  for (int c = 0; c < T::kChannels; c += kChannelStep)
#pragma unroll
    for (int r = 0; r < T::kColumns; r += kColumnStep) {
      const int k = T::channel(lane, c), v = v0 + T::column(lane, r);
      f(r, c, T::kVFirst ? v * row + k * size : k * row + v * size, T::valid(p, k, v));
    }
}

template <class T>
__device__ __forceinline__ void load_tile(const DecodeParams& p, int lane, int v0, int64_t n,
                                          int hv, State<T>& s) {
  const int type = T::state_type(p.in_type);
  const char* base = p.state_in + state_offset<T>(p.in_stride, n, hv);
  for_each_access<T>(p, lane, v0, p.in_stride.row, type, [&](int r, int c, int offset, int valid) {
    float x[T::kVector];
    load_state<T::kVectors, T::kVector>(base + offset, type, valid, x);
#pragma unroll
    for (int e = 0; e < T::kVector; ++e) (T::kVFirst ? s[r][c + e] : s[r + e][c]) = x[e];
  });
}

template <class T>
__device__ __forceinline__ void store_tile(const DecodeParams& p, int lane, int v0, int64_t n,
                                           int hv, const State<T>& s) {
  const int type = T::state_type(p.out_type);
  char* base = p.state_out + state_offset<T>(p.out_stride, n, hv);
  for_each_access<T>(p, lane, v0, p.out_stride.row, type, [&](int r, int c, int offset, int valid) {
    float x[T::kVector];
#pragma unroll
    for (int e = 0; e < T::kVector; ++e) x[e] = T::kVFirst ? s[r][c + e] : s[r + e][c];
    store_state<T::kVectors, T::kVector>(base + offset, type, valid, x);
  });
}

}  // namespace linattn::cuda::decode
