// Recurrent forward, a team of one or a few warps per tile of V columns with every key channel of
// them. A team needs no other: it reads its part of the state once, walks the tokens with it in
// registers, and writes it once. docs/kernels/decode.md has the roofline and the schedule.
#pragma once

#include <cstdint>

#include "cuda/portable/decode.config.h"
#include "cuda/portable/decode.io.cuh"
#include "cuda/portable/decode.params.h"
#include "cuda/ptx/launch.cuh"
#include "cuda/ptx/math.cuh"
#include "cuda/ptx/warp.cuh"

namespace linattn::cuda {
namespace decode {

__device__ __forceinline__ uint32_t divide(uint32_t x, const FastDivisor& d) {
  return (__umulhi(x, d.magic) + x) >> d.shift;
}

// --- the tile of one team

// `lane` counts through the warps of a team; lanes along V are neighbours, so that K-first rows are
// read in long segments.
template <int kVariant, int kShape>
struct Tile {
  static constexpr DecodeVariant variant = decode_variant(kVariant);
  static constexpr DecodeShape shape = kDecodeShapes[kShape];
  static constexpr bool kVFirst = variant.v_first, kExact = shape.exact;
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
  static constexpr bool kHandsOver = kLanesK < 32;
  static constexpr int kRead = kHandsOver ? (kCapacity + 127) / 128 * 4 : kChannels;

  static_assert(kChannels % 4 == 0 && (kVFirst || kColumns % 4 == 0), "accesses of four");
  static_assert((kSums & (kSums - 1)) == 0, "sums are halved");
  static_assert(!kExact || kCapacity == 128, "K = 128");
  static_assert(kWarpsK == 1 || (shape.teams == 1 && kHandsOver), "one team at the CTA's barrier");

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
  const int row = T::kExact ? 128 * size : stride;
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

// --- tokens

// What a lane reads for one token, as it lies in memory.
template <class T>
struct RawToken {
  Four q[T::kRead / 4], k[T::kRead / 4], g[T::kRead / 4], bias[T::kRead / 4];
  uint32_t head_gate, head_bias, A_log, beta;
  uint32_t v[T::kOwned];
};

template <class T>
__device__ __forceinline__ int token_type(const DecodeParams& p) {
  return T::kExact ? LINATTN_BF16 : p.token_type;
}

template <class T>
__device__ __forceinline__ void load_gate(const DecodeParams& p, int lane, int first, int t, int hv,
                                          RawToken<T>& raw) {
  const bool channels = T::variant.channel && (!T::kSwitches || p.gate == LINATTN_GATE_CHANNEL);
  const int channel0 = channels ? T::read_channel(lane, 0) : 0;
  const int g_type = side_type<T>(p.g_type), bias_type = side_type<T>(p.dt_bias_type);
  const char* g =
      p.g + token_offset<T>(p.g_stride, p.g_short, first, t, hv, channel0 * size_of(g_type));
  const char* bias = p.dt_bias + scaled<T>(hv, p.dt_bias_stride) + channel0 * size_of(bias_type);
  if (channels) {
#pragma unroll
    for (int c = 0; c < T::kRead; c += 4) {
      const int on = T::read_channel(lane, c) - channel0;
      const int valid = T::kExact ? 4 : p.dim_k - T::read_channel(lane, c);
      raw.g[c / 4] = load_four<T::kVectors>(g + on * size_of(g_type), g_type, valid);
      raw.bias[c / 4] = {};
      if (p.flags & kDecodeBias)
        raw.bias[c / 4] = load_four<T::kVectors>(bias + on * size_of(bias_type), bias_type, valid);
    }
  } else if (p.gate == LINATTN_GATE_HEAD) {
    raw.head_gate = load_bits(g, g_type);
    if (p.flags & kDecodeBias) raw.head_bias = load_bits(bias, bias_type);
  } else if (p.gate == LINATTN_GATE_HEAD_CONSTANT) {
    raw.head_gate = load_bits(p.g_gamma + hv * p.g_gamma_stride, LINATTN_F32);
  }
  if (p.flags & kDecodeALog)
    raw.A_log = load_bits(p.A_log + scaled<T>(hv, p.A_log_stride), LINATTN_F32);
}

template <class T>
__device__ __forceinline__ void load_token(const DecodeParams& p, int lane, int first, int t,
                                           int hv, int v, RawToken<T>& raw) {
  const int type = token_type<T>(p), channel0 = T::read_channel(lane, 0);
  const int h = static_cast<int>(divide(static_cast<uint32_t>(hv), p.group));
  const char* q =
      p.q + token_offset<T>(p.q_stride, p.q_short, first, t, h, channel0 * size_of(type));
  const char* k =
      p.k + token_offset<T>(p.k_stride, p.k_short, first, t, h, channel0 * size_of(type));
#pragma unroll
  for (int c = 0; c < T::kRead; c += 4) {
    const int on = (T::read_channel(lane, c) - channel0) * size_of(type);
    const int valid = T::kExact ? 4 : p.dim_k - T::read_channel(lane, c);
    raw.q[c / 4] = load_four<T::kVectors>(q + on, type, valid);
    raw.k[c / 4] = load_four<T::kVectors>(k + on, type, valid);
  }
  const char* values =
      p.v + token_offset<T>(p.v_stride, p.v_short, first, t, hv, v * size_of(type));
#pragma unroll
  for (int i = 0; i < T::kOwned; ++i) {
    const int on = T::column(0, i);
    raw.v[i] = 0;
    if (T::kExact || v + on < p.dim_v) raw.v[i] = load_bits(values + on * size_of(type), type);
  }
  load_gate<T>(p, lane, first, t, hv, raw);
  if constexpr (T::variant.delta)
    if (p.flags & kDecodeBeta)
      raw.beta = load_bits(p.beta + token_offset<T>(p.beta_stride, p.beta_short, first, t, hv, 0),
                           side_type<T>(p.beta_type));
}

// log(1 + exp(x)). log1p(t) for t in [0,1] is t times a polynomial (Chebyshev fit, 1.2e-7
// relative): the logarithm of the special-function unit loses what 1 + t rounds away.
__device__ __forceinline__ float softplus(float x) {
  constexpr float kFit[] = {1.0f,          -0.499995023f,  0.333192706f,
                            -0.248443693f, 0.191114306f,   -0.136747703f,
                            0.0783616677f, -0.0295885075f, 0.00525345793f};
  const float t = expf(-fabsf(x));
  float y = kFit[8];
#pragma unroll
  for (int i = 7; i >= 0; --i) y = fmaf(y, t, kFit[i]);
  return fmaxf(x, 0.0f) + t * y;
}

constexpr float kLog2E = 1.44269504088896341f;

// x becomes the decay; `factor` is exp(A_log). 16-bit tokens carry 8 or 11 bits, so base-2
// approximations with errors around 2e-7 a token leave nothing to see; fp32 tokens get full
// functions.
template <int kCount>
__device__ __forceinline__ void to_decay(const DecodeParams& p, const float (&bias)[kCount],
                                         float A_log, float (&x)[kCount]) {
  if (p.gate_form != LINATTN_GATE_GIVEN) {
    const float factor = p.flags & kDecodeALog ? expf(A_log) : 1.0f;
#pragma unroll
    for (int i = 0; i < kCount; ++i) x[i] += bias[i];
    if (p.gate_form == LINATTN_GATE_RAW_SOFTPLUS) {
      if (p.flags & kDecodePrecise) {
#pragma unroll
        for (int i = 0; i < kCount; ++i) x[i] = -factor * (x[i] > 20.0f ? x[i] : softplus(x[i]));
      } else {
#pragma unroll
        for (int i = 0; i < kCount; ++i) {
          const float in_log2 = x[i] * kLog2E;
          const float folded = ptx::log2_approx(1.0f + ptx::exp2_approx(in_log2));
          x[i] = ptx::exp2_approx(-factor * (x[i] > 20.0f ? in_log2 : folded));
        }
        return;
      }
    } else {
#pragma unroll
      for (int i = 0; i < kCount; ++i)
        x[i] = p.lower_bound *
               ptx::reciprocal_approx(1.0f + ptx::exp2_approx(-kLog2E * factor * x[i]));
    }
  }
  if (p.flags & kDecodePrecise) {
#pragma unroll
    for (int i = 0; i < kCount; ++i) x[i] = expf(x[i]);
  } else {
#pragma unroll
    for (int i = 0; i < kCount; ++i) x[i] = ptx::exp2_approx(kLog2E * x[i]);
  }
}

// q, k, decay of one token as the tile's lanes want them, and the scalars of the token.
template <class T>
struct Token {
  float q[T::kChannels], k[T::kChannels], decay[T::variant.channel ? T::kChannels : 1];
  float q_dot_k, q_inverse_norm, k_inverse_norm, beta;
  float v[T::kOwned];
};

template <class T>
struct HandOver {
  float q[T::kCapacity], k[T::kCapacity], decay[T::variant.channel ? T::kCapacity : 4];
};

// Sums of q.q, k.k and q.k over the lanes that read. The first two steps also halve what a lane
// keeps, so three sums take eight exchanges instead of fifteen.
template <class T>
__device__ __forceinline__ void reduce_products(const float (&q)[T::kRead],
                                                const float (&k)[T::kRead], int lane,
                                                Token<T>& token) {
  float qq = 0.0f, kk = 0.0f, qk = 0.0f;
#pragma unroll
  for (int c = 0; c < T::kRead; ++c) {
    qq = fmaf(q[c], q[c], qq);
    kk = fmaf(k[c], k[c], kk);
    qk = fmaf(q[c], k[c], qk);
  }
  // Lanes with bit 16 keep q.k, the others q.q (bit 8 clear) and k.k (bit 8 set).
  const bool upper = (lane & 16) != 0, odd = (lane & 8) != 0;
  const float other_qk = ptx::shuffle_xor(upper ? qq : qk, 16);
  const float other_kk = ptx::shuffle_xor(kk, 16);
  float sum = (upper ? qk : qq) + other_qk;
  kk += other_kk;
  const float given = odd ? sum : kk;
  const float received = ptx::shuffle_xor(upper ? sum : given, 8);
  sum = (upper ? sum : odd ? kk : sum) + received;
#pragma unroll
  for (int bit = 4; bit >= 1; bit >>= 1) sum += ptx::shuffle_xor(sum, bit);
  token.q_dot_k = ptx::shuffle(sum, 16);
  token.q_inverse_norm = ptx::inverse_root_approx(ptx::shuffle(sum, 0) + 1e-6f);
  token.k_inverse_norm = ptx::inverse_root_approx(ptx::shuffle(sum, 8) + 1e-6f);
}

template <class T>
__device__ __forceinline__ void prepare_token(const DecodeParams& p, int lane,
                                              const RawToken<T>& raw, HandOver<T>* hand_over,
                                              Token<T>& token) {
  const int type = token_type<T>(p);
  float q[T::kRead], k[T::kRead];
#pragma unroll
  for (int c = 0; c < T::kRead; c += 4) {
    unpack_four<T::kVectors>(raw.q[c / 4], type, q + c);
    unpack_four<T::kVectors>(raw.k[c / 4], type, k + c);
  }
  reduce_products<T>(q, k, lane, token);
  if (!(p.flags & kDecodeNorm)) token.q_inverse_norm = token.k_inverse_norm = 1.0f;

  const float A_log = __uint_as_float(raw.A_log);
  float decay[T::variant.channel ? T::kRead : 1];
  if (T::variant.channel && (!T::kSwitches || p.gate == LINATTN_GATE_CHANNEL)) {
    if constexpr (T::variant.channel) {
      float bias[T::kRead];
#pragma unroll
      for (int c = 0; c < T::kRead; c += 4) {
        unpack_four<T::kVectors>(raw.g[c / 4], side_type<T>(p.g_type), decay + c);
        unpack_four<T::kVectors>(raw.bias[c / 4], side_type<T>(p.dt_bias_type), bias + c);
      }
      to_decay<T::kRead>(p, bias, A_log, decay);
    }
  } else {
    float head[1] = {1.0f};
    if (p.gate == LINATTN_GATE_HEAD) {
      const float bias[1] = {
          p.flags & kDecodeBias ? from_bits(raw.head_bias, side_type<T>(p.dt_bias_type)) : 0.0f};
      head[0] = from_bits(raw.head_gate, side_type<T>(p.g_type));
      to_decay<1>(p, bias, A_log, head);
    } else if (p.gate == LINATTN_GATE_HEAD_CONSTANT) {
      // A rounded constant is the same error at every token: full precision.
      head[0] = expf(__uint_as_float(raw.head_gate));
    }
#pragma unroll
    for (float& d : decay) d = head[0];
  }

#pragma unroll
  for (int i = 0; i < T::kOwned; ++i) token.v[i] = from_bits(raw.v[i], type);
  token.beta = 1.0f;
  if constexpr (T::variant.delta)
    if (p.flags & kDecodeBeta) {
      token.beta = from_bits(raw.beta, side_type<T>(p.beta_type));
      if (p.beta_form != LINATTN_BETA_VALUE)
        token.beta = __fdividef(p.beta_form == LINATTN_BETA_SIGMOID2 ? 2.0f : 1.0f,
                                1.0f + expf(-token.beta));
    }

  if constexpr (!T::kHandsOver) {
#pragma unroll
    for (int c = 0; c < T::kRead; ++c) {
      token.q[c] = q[c], token.k[c] = k[c];
      if constexpr (T::variant.channel) token.decay[c] = decay[c];
    }
  } else {
    ptx::sync_warp();  // the last token's values have been read
#pragma unroll
    for (int c = 0; c < T::kRead; c += 4) {
      const int channel = T::read_channel(lane, c);
      if (T::kCapacity % 128 == 0 || channel < T::kCapacity) {
        put_four(hand_over->q + channel, q + c);
        put_four(hand_over->k + channel, k + c);
        if constexpr (T::variant.channel) put_four(hand_over->decay + channel, decay + c);
      }
    }
    ptx::sync_warp();
#pragma unroll
    for (int c = 0; c < T::kChannels; c += 4) {
      const int channel = T::channel(lane, c);
      get_four(hand_over->q + channel, token.q + c);
      get_four(hand_over->k + channel, token.k + c);
      if constexpr (T::variant.channel) get_four(hand_over->decay + channel, token.decay + c);
    }
  }
  if constexpr (!T::variant.channel) token.decay[0] = decay[0];
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
    if (T::writes(lane)) {
      const int type = token_type<T>(p);
      char* outputs =
          p.o + token_offset<T>(p.o_stride, p.o_short, first, t, head, v * size_of(type));
#pragma unroll
      for (int i = 0; i < T::kOwned; ++i) {
        const int on = T::column(0, i);
        if (T::kExact || v + on < p.dim_v) store_one(outputs + on * size_of(type), type, o[i]);
      }
    }
    if ((p.flags & kDecodeColumns) && t < p.state_columns) {
      const int64_t target = target_slot(p, ptx::opaque(n), t);
      if (target >= 0) store_tile<T>(p, lane, v0, target, head, s);
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
  alignas(16) __shared__ decode::HandOver<T> hand_over[T::kHandsOver ? T::kWarps : 1];
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
  if (n < static_cast<uint32_t>(p.num_sequences))
    return decode::run_sequence<T>(p, lane, v0, n, hv, hand_over + (T::kHandsOver ? warp : 0),
                                   &partials);

  // Past the last sequence of a varlen call: the rows that nobody owns.
  const int end = decode::offset_of(p, p.num_sequences);
  decode::zero_outputs<T>(p, lane, v0, hv, {end, p.num_tokens - end});
}

}  // namespace linattn::cuda
