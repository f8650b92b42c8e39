// Recurrent forward, a team of one or a few warps per tile of V columns with every key channel of
// them. A team needs no other: it reads its part of the state once, walks the tokens with it in
// registers, and writes it once. docs/kernels/decode.md has the roofline and the schedule.
#pragma once

#include <cstdint>

#include "cuda/portable/decode.config.h"
#include "cuda/portable/decode.params.h"
#include "cuda/portable/decode.token.cuh"
#include "cuda/ptx/launch.cuh"
#include "cuda/ptx/warp.cuh"

namespace linattn::cuda {
namespace decode {

// --- sequences and slots

// `first` counts tokens along the axis of TokenStride::first.
struct Range {
  int first, length;
};

__device__ __forceinline__ int offset_of(const DecodeParams& p, int64_t i) {
  // Clamped: offsets past T are the caller's fault, but not a reason to leave the tensors.
  const int64_t value = load_index(p.cu_seqlens + i * p.cu_stride, p.flags & kDecodeCu64);
  return value < 0 ? 0 : value > p.num_tokens ? p.num_tokens : static_cast<int>(value);
}

__device__ __forceinline__ Range token_range(const DecodeParams& p, int n) {
  if (!(p.flags & kDecodeVarlen)) return {n * p.tokens_apart, p.num_tokens};
  const int begin = offset_of(p, n);
  return {begin, offset_of(p, n + 1ll) - begin};
}

// -1 for a dead row. Without a pool the index is the sequence's own number.
__device__ __forceinline__ int64_t live_index(const DecodeParams& p, int64_t index) {
  if (!(p.flags & kDecodePool)) return index;
  const bool dead = static_cast<uint64_t>(index) >= static_cast<uint64_t>(p.num_slots) ||
                    ((p.flags & kDecodeNullIndex) && index == p.null_index);
  return dead ? -1 : index;
}

// Index of the slot that sequence n starts from, not yet checked; -1: a dead row.
__device__ __forceinline__ int64_t start_index(const DecodeParams& p, int n) {
  if (!(p.flags & kDecodePool)) return n;
  const char* at = p.state_indices + n * p.index_stride;
  if (p.flags & kDecodeAccepted) {
    const int64_t column =
        load_index(p.num_accepted + n * p.accepted_stride, p.flags & kDecodeAccepted64) - 1;
    if (static_cast<uint64_t>(column) >= static_cast<uint64_t>(p.state_columns)) return -1;
    at += column * p.index_column_stride;
  }
  return load_index(at, p.flags & kDecodeIndex64);
}

// Slot that takes a state; -1: none does.
__device__ __forceinline__ int64_t target_slot(const DecodeParams& p, int n, int column) {
  return live_index(
      p, p.flags & kDecodeSeparate
             ? load_index(p.output_indices + n * p.output_stride + column * p.output_column_stride,
                          p.flags & kDecodeOutput64)
             : load_index(p.state_indices + n * p.index_stride + column * p.index_column_stride,
                          p.flags & kDecodeIndex64));
}

// Outputs of tokens that no live sequence owns.
template <class T>
__device__ __forceinline__ void zero_outputs(const DecodeParams& p, int lane, int v0, int hv,
                                             const Range& range) {
  const int size = size_of(p.token_type);
  for (int t = 0; t < range.length; ++t) {
    char* o = p.o + range.first * p.o_stride.first + t * p.o_stride.t + hv * p.o_stride.h;
    for (int v = v0 + lane; v < v0 + T::kTileV && v < p.dim_v; v += 32)
      store_one(o + v * size, p.token_type, 0.0f);
  }
}

// --- the step

// Sums x over the lanes of a warp along K. The lane with lane_k = j ends with the kHeld sums from
// j * kSums / kLanesK on, in front of x: each step halves what a lane keeps, so kSums sums cost
// about as many exchanges as there are sums instead of five each.
template <class T>
__device__ __forceinline__ void reduce_scatter(float (&x)[T::kSums], int lane) {
  int count = T::kSums;
#pragma unroll
  for (int bit = 16; bit >= T::kLanesV; bit >>= 1) {
    if (count > 1) {
      count /= 2;
      const bool upper = (lane & bit) != 0;
#pragma unroll
      for (int i = 0; i < T::kSums / 2; ++i) {
        if (i < count) {
          const float given = upper ? x[i] : x[i + count];
          const float kept = upper ? x[i + count] : x[i];
          x[i] = kept + ptx::shuffle_xor(given, bit);
        }
      }
    } else {
      x[0] += ptx::shuffle_xor(x[0], bit);
    }
  }
}

// Partial sums of a team's warps. Two of them, used in turn: one barrier a token is enough, since
// at the next token's every warp has read this one's.
template <class T>
struct Partials {
  float sum[2][T::kWarpsK][T::kHeld][32];
};

template <class T>
__device__ __forceinline__ void add_over_warps(int lane, int t, Partials<T>* partials,
                                               float (&x)[T::kSums]) {
  auto& sum = partials->sum[t & 1];
#pragma unroll
  for (int i = 0; i < T::kHeld; ++i) sum[lane / 32][i][lane & 31] = x[i];
  ptx::sync_cta();
#pragma unroll
  for (int i = 0; i < T::kHeld; ++i) {
    x[i] = sum[0][i][lane & 31];
#pragma unroll
    for (int w = 1; w < T::kWarpsK; ++w) x[i] += sum[w][i][lane & 31];
  }
}

// One step of the recurrence on the tile; o gets the outputs of the lane's columns.
//
// o = scale (S_new^T q) is taken from the decayed state before the update, as
// scale (S^T q + (q.k) u): both sums of a column then leave in one reduction. q and k enter without
// their norms, which are scalars of the token.
template <class T>
__device__ __forceinline__ void step(const DecodeParams& p, int lane, int t, const Token<T>& token,
                                     Partials<T>* partials, State<T>& s, float (&o)[T::kOwned]) {
  float sums[T::kSums];
#pragma unroll
  for (int r = 0; r < T::kColumns; ++r) {
    float k_dot_s = 0.0f, q_dot_s = 0.0f;
#pragma unroll
    for (int c = 0; c < T::kChannels; ++c) {
      s[r][c] *= token.decay[T::variant.channel ? c : 0];
      if constexpr (T::variant.delta) k_dot_s = fmaf(token.k[c], s[r][c], k_dot_s);
      q_dot_s = fmaf(token.q[c], s[r][c], q_dot_s);
    }
    if constexpr (T::variant.delta) {
      sums[2 * r] = k_dot_s;
      sums[2 * r + 1] = q_dot_s;
    } else {
      sums[r] = q_dot_s;
    }
  }
  reduce_scatter<T>(sums, lane);
  if constexpr (T::kWarpsK > 1) add_over_warps<T>(lane, t, partials, sums);

  float written[T::kOwned];  // what multiplies the stored k
#pragma unroll
  for (int i = 0; i < T::kOwned; ++i) {
    float u = token.v[i], q_dot_s = sums[T::kPerColumn * i + T::kPerColumn - 1];
    if constexpr (T::variant.delta) {
      float k_dot_s = sums[2 * i];
      if constexpr (T::kHeld == 1) {
        constexpr int kPartner = T::kLanesK / T::kSums * T::kLanesV;
        const float other = ptx::shuffle_xor(sums[0], kPartner);
        const bool has_q = (lane & kPartner) != 0;
        k_dot_s = has_q ? other : sums[0];
        q_dot_s = has_q ? sums[0] : other;
      }
      if (!T::kSwitches || !(p.flags & kDecodeAdditive))
        u = token.beta * (u - token.k_inverse_norm * k_dot_s);
    }
    written[i] = token.k_inverse_norm * u;
    o[i] = p.scale * token.q_inverse_norm * fmaf(token.q_dot_k, written[i], q_dot_s);
  }
#pragma unroll
  for (int r = 0; r < T::kColumns; ++r) {
    float w = written[r % T::kOwned];
    if constexpr (T::kLanesK > 1)
      w = ptx::shuffle(w, r * T::kLanesK / T::kColumns * T::kLanesV + T::lane_v(lane));
#pragma unroll
    for (int c = 0; c < T::kChannels; ++c) s[r][c] = fmaf(token.k[c], w, s[r][c]);
  }
}

template <class T>
__device__ __forceinline__ void load_or_clear(const DecodeParams& p, int lane, int v0, int n,
                                              int64_t slot, int hv, bool* reads, State<T>& s) {
  *reads = (p.flags & kDecodeReads) &&
           (!(p.flags & kDecodeHasInitial) || p.has_initial[n * p.has_stride] != 0);
  if (*reads) return load_tile<T>(p, lane, v0, slot, hv, s);
  const float zero = ptx::opaque(0.0f);  // or every warp clears its registers, then loads them
#pragma unroll
  for (int r = 0; r < T::kColumns; ++r)
#pragma unroll
    for (int c = 0; c < T::kChannels; ++c) s[r][c] = zero;
}

__device__ __forceinline__ int64_t last_target(const DecodeParams& p, int n, int64_t slot) {
  if ((p.flags & kDecodeColumns) || !(p.flags & kDecodeWrites)) return -1;
  return p.flags & kDecodeSeparate ? target_slot(p, n, 0) : slot;
}

// A sequence without tokens passes its state through.
template <class T>
__device__ __forceinline__ void copy_state(const DecodeParams& p, int lane, int v0, int n, int hv) {
  const int64_t slot = live_index(p, start_index(p, n));
  if (slot < 0) return;
  const int64_t target = last_target(p, n, slot);
  if (target < 0) return;
  State<T> s;
  bool reads;
  load_or_clear<T>(p, lane, v0, n, slot, hv, &reads, s);
  if ((p.flags & kDecodePool) && reads && target == slot) return;
  store_tile<T>(p, lane, v0, target, hv, s);
}

template <class T>
__device__ __forceinline__ void store_outputs(const DecodeParams& p, int lane, int first, int t,
                                              int hv, int v, const float (&o)[T::kOwned]) {
  if (!T::writes(lane)) return;
  const int type = token_type<T>(p);
  char* outputs = p.o + token_offset<T>(p.o_stride, p.o_short, first, t, hv, v * size_of(type));
#pragma unroll
  for (int i = 0; i < T::kOwned; ++i) {
    const int on = T::column(0, i);
    if (T::kExact || v + on < p.dim_v) store_one(outputs + on * size_of(type), type, o[i]);
  }
}

template <class T>
__device__ __forceinline__ void run_sequence(const DecodeParams& p, int lane, int v0, int n, int hv,
                                             HandOver<T>* hand_over, Partials<T>* partials) {
  const Range range = token_range(p, n);
  if (range.length <= 0) return copy_state<T>(p, lane, v0, n, hv);

  const int v = v0 + T::column(lane, T::owned_column(lane));
  const int64_t index = start_index(p, n);
  int64_t slot = -1;
  State<T> s;
#pragma unroll 1
  for (int t = 0; t < range.length; ++t) {
    // The token is on its way before the index of the slot has arrived, the state right after it
    // has. Addresses come from opaque numbers: one token is the common case, so nothing is to be
    // computed ahead for the next ones, and uniform registers would cost a move for each address.
    const int first = ptx::opaque(range.first + (T::kExact ? t : 0)), head = ptx::opaque(hv);
    RawToken<T> raw;
    load_token<T>(p, lane, first, t, head, v, raw);
    if (t == 0) {
      slot = live_index(p, index);
      if (slot < 0) return zero_outputs<T>(p, lane, v0, hv, range);
      bool reads;
      load_or_clear<T>(p, lane, v0, n, slot, hv, &reads, s);
    }
    Token<T> token;
    prepare_token<T>(p, lane, raw, hand_over, token);
    float o[T::kOwned];
    step<T>(p, lane, t, token, partials, s, o);
    store_outputs<T>(p, lane, first, t, head, v, o);
    if ((p.flags & kDecodeColumns) && t < p.state_columns) {
      const int64_t target = target_slot(p, ptx::opaque(n), t);
      if (target >= 0) store_tile<T>(p, lane, v0, target, head, s);
    }
  }
  const int64_t target = last_target(p, n, slot);
  if (target >= 0) store_tile<T>(p, lane, v0, target, hv, s);
}

// The same for several tokens: each warp of the CTA prepares some of a block of them, the first
// while the state is on its way, and all walk them.
template <class T>
__device__ __forceinline__ void run_together(const DecodeParams& p, int lane, int warp, int v0,
                                             int n, int hv, SharedTokens<T>* shared,
                                             Partials<T>* partials) {
  const Range range = token_range(p, n);
  if (range.length <= 0) return copy_state<T>(p, lane, v0, n, hv);
  const int64_t slot = live_index(p, start_index(p, n));
  if (slot < 0) return zero_outputs<T>(p, lane, v0, hv, range);

  const int column = v0 % T::kTogetherV + T::column(lane, T::owned_column(lane));
  const int cta_v0 = v0 - v0 % T::kTogetherV;
  State<T> s;
#pragma unroll 1
  for (int begin = 0; begin < range.length; begin += kTokensTogether) {
    const int left = range.length - begin, count = left < kTokensTogether ? left : kTokensTogether;
    if (begin > 0) ptx::sync_cta();  // every warp has walked the last block
#pragma unroll 1
    for (int place = warp; place < kTokensTogether; place += T::kWarps) {
      const int first = ptx::opaque(range.first + begin + place), head = ptx::opaque(hv);
      RawToken<T> raw;
      if (place < count) load_token<T>(p, lane, first, 0, head, cta_v0 + (lane & 31), raw);
      if (begin == 0 && place == warp) {
        bool reads;
        load_or_clear<T>(p, lane, v0, n, slot, hv, &reads, s);
      }
      if (place >= count) continue;
      share_token<T>(p, lane, place, raw, shared);
      if (lane % 32 == 0) {
        const int t = begin + place;
        const bool each = (p.flags & kDecodeColumns) && t < p.state_columns;
        shared->target[place] = each ? target_slot(p, n, t) : -1;
      }
    }
    ptx::sync_cta();
#pragma unroll 1
    for (int place = 0; place < count; ++place) {
      const int head = ptx::opaque(hv);
      Token<T> token;
      take_token<T>(shared, place, lane, column, token);
      float o[T::kOwned];
      step<T>(p, lane, begin + place, token, partials, s, o);
      store_outputs<T>(p, lane, range.first + begin + place, 0, head, cta_v0 + column, o);
      if (const int64_t target = shared->target[place]; target >= 0)
        store_tile<T>(p, lane, v0, target, head, s);
    }
  }
  const int64_t target = last_target(p, n, slot);
  if (target >= 0) store_tile<T>(p, lane, v0, target, hv, s);
}

}  // namespace decode

// Register budgets are tuned, and known not to spill, where they were measured.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ != 900
constexpr bool kDecodeTuned = false;
#else
constexpr bool kDecodeTuned = true;
#endif

template <int kVariant, int kShape>
__global__ void __launch_bounds__(kDecodeShapes[kShape].threads(),
                                  kDecodeTuned ? kDecodeShapes[kShape].min_ctas : 1)
    recurrent_forward_portable(const __grid_constant__ DecodeParams p) {
  using T = decode::Tile<kVariant, kShape>;
  alignas(16) __shared__ decode::HandOver<T>
      hand_over[T::kHandsOver && !T::kTogether ? T::kWarps : 1];
  alignas(16) __shared__ decode::SharedTokens<T> tokens;
  __shared__ decode::Partials<T> partials;
  // Spelled out for one team: branches on what follows from blockIdx alone are known to be uniform.
  const uint32_t warp = T::kWarps == 1 ? 0 : threadIdx.x >> 5;
  const int lane = static_cast<int>(threadIdx.x % (32 * T::kWarpsK));
  const uint32_t work = T::kTeams == 1 ? blockIdx.x : blockIdx.x * T::kTeams + warp / T::kWarpsK;
  const uint32_t head = decode::divide(work, p.slabs);
  const int v0 = static_cast<int>(work - head * p.slabs.divisor) * T::kTileV;
  const uint32_t n = decode::divide(head, p.heads_v);
  const int hv = static_cast<int>(head - n * p.heads_v.divisor);

  ptx::wait_for_previous_grid();
  ptx::allow_next_grid();
  if (T::kTeams > 1 && work >= p.num_teams) return;
  if (n < static_cast<uint32_t>(p.num_sequences)) {
    if constexpr (T::kTogether)
      return decode::run_together<T>(p, lane, warp, v0, n, hv, &tokens, &partials);
    else
      return decode::run_sequence<T>(p, lane, v0, n, hv, hand_over + (T::kHandsOver ? warp : 0),
                                     &partials);
  }

  // Past the last sequence of a varlen call: the rows that nobody owns.
  const int end = decode::offset_of(p, p.num_sequences);
  decode::zero_outputs<T>(p, lane, v0, hv, {end, p.num_tokens - end});
}

}  // namespace linattn::cuda
