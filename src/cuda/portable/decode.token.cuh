// One token as a tile wants it: raw loads, then norms, decays and beta, handed over between lanes.
#pragma once

#include <cstdint>

#include "cuda/portable/decode.tile.cuh"
#include "cuda/ptx/warp.cuh"

namespace linattn::cuda::decode {

// What a lane reads for one token, as it lies in memory.
template <class T>
struct RawToken {
  Four q[T::kRead / 4], k[T::kRead / 4], g[T::kRead / 4], bias[T::kRead / 4];
  uint32_t head_gate, head_bias, A_log, beta;
  uint32_t v[T::kValues];
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
      const int valid = T::kReadsAll ? 4 : p.dim_k - T::read_channel(lane, c);
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
    const int valid = T::kReadsAll ? 4 : p.dim_k - T::read_channel(lane, c);
    raw.q[c / 4] = load_four<T::kVectors>(q + on, type, valid);
    raw.k[c / 4] = load_four<T::kVectors>(k + on, type, valid);
  }
  const char* values =
      p.v + token_offset<T>(p.v_stride, p.v_short, first, t, hv, v * size_of(type));
#pragma unroll
  for (int i = 0; i < T::kValues; ++i) {
    const int on = T::value_step(i);
    raw.v[i] = 0;
    if (T::kExact ? T::reads_value(lane, i) : v + on < p.dim_v)
      raw.v[i] = load_bits(values + on * size_of(type), type);
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

// The numbers of a token for the channels that a lane reads.
template <class T>
struct ReadToken {
  float q[T::kRead], k[T::kRead], decay[T::variant.channel ? T::kRead : 1];
};

// Fills in the token's scalars too.
template <class T>
__device__ __forceinline__ void evaluate_token(const DecodeParams& p, int lane,
                                               const RawToken<T>& raw, ReadToken<T>& read,
                                               Token<T>& token) {
  const int type = token_type<T>(p);
#pragma unroll
  for (int c = 0; c < T::kRead; c += 4) {
    unpack_four<T::kVectors>(raw.q[c / 4], type, read.q + c);
    unpack_four<T::kVectors>(raw.k[c / 4], type, read.k + c);
  }
  reduce_products<T>(read.q, read.k, lane, token);
  if (!(p.flags & kDecodeNorm)) token.q_inverse_norm = token.k_inverse_norm = 1.0f;

  const float A_log = __uint_as_float(raw.A_log);
  if (T::variant.channel && (!T::kSwitches || p.gate == LINATTN_GATE_CHANNEL)) {
    if constexpr (T::variant.channel) {
      float bias[T::kRead];
#pragma unroll
      for (int c = 0; c < T::kRead; c += 4) {
        unpack_four<T::kVectors>(raw.g[c / 4], side_type<T>(p.g_type), read.decay + c);
        unpack_four<T::kVectors>(raw.bias[c / 4], side_type<T>(p.dt_bias_type), bias + c);
      }
      to_decay<T::kRead>(p, bias, A_log, read.decay);
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
    for (float& d : read.decay) d = head[0];
  }

  token.beta = 1.0f;
  if constexpr (T::variant.delta)
    if (p.flags & kDecodeBeta) {
      token.beta = from_bits(raw.beta, side_type<T>(p.beta_type));
      if (p.beta_form != LINATTN_BETA_VALUE)
        token.beta = __fdividef(p.beta_form == LINATTN_BETA_SIGMOID2 ? 2.0f : 1.0f,
                                1.0f + expf(-token.beta));
    }
}

template <class T>
__device__ __forceinline__ void put_channels(int lane, const ReadToken<T>& read,
                                             HandOver<T>* hand_over) {
#pragma unroll
  for (int c = 0; c < T::kRead; c += 4) {
    const int channel = T::read_channel(lane, c);
    if (T::kCapacity % 128 == 0 || channel < T::kCapacity) {
      put_four(hand_over->q + channel, read.q + c);
      put_four(hand_over->k + channel, read.k + c);
      if constexpr (T::variant.channel) put_four(hand_over->decay + channel, read.decay + c);
    }
  }
}

template <class T>
__device__ __forceinline__ void get_channels(int lane, const HandOver<T>* hand_over,
                                             Token<T>& token) {
#pragma unroll
  for (int c = 0; c < T::kChannels; c += 4) {
    const int channel = T::channel(lane, c);
    get_four(hand_over->q + channel, token.q + c);
    get_four(hand_over->k + channel, token.k + c);
    if constexpr (T::variant.channel) get_four(hand_over->decay + channel, token.decay + c);
  }
}

template <class T>
__device__ __forceinline__ void prepare_token(const DecodeParams& p, int lane,
                                              const RawToken<T>& raw, HandOver<T>* hand_over,
                                              Token<T>& token) {
  ReadToken<T> read;
  evaluate_token<T>(p, lane, raw, read, token);
#pragma unroll
  for (int i = 0; i < T::kOwned; ++i) token.v[i] = from_bits(raw.v[i], token_type<T>(p));
  if constexpr (!T::kHandsOver) {
#pragma unroll
    for (int c = 0; c < T::kRead; ++c) {
      token.q[c] = read.q[c], token.k[c] = read.k[c];
      if constexpr (T::variant.channel) token.decay[c] = read.decay[c];
    }
  } else {
    ptx::sync_warp();  // the last token's values have been read
    put_channels<T>(lane, read, hand_over);
    ptx::sync_warp();
    get_channels<T>(lane, hand_over, token);
  }
  if constexpr (!T::variant.channel) token.decay[0] = read.decay[0];
}

// --- tokens that the warps of a CTA prepare for each other

inline constexpr int kTokensTogether = 8;

template <class T>
struct SharedTokens {
  HandOver<T> channels[kTokensTogether];
  float q_dot_k[kTokensTogether], q_inverse_norm[kTokensTogether], k_inverse_norm[kTokensTogether];
  float beta[kTokensTogether], decay[kTokensTogether];
  float v[kTokensTogether][T::kTogetherV];
  int64_t target[kTokensTogether];  // slot that takes the state after the token; -1: none
};

template <class T>
__device__ __forceinline__ void share_token(const DecodeParams& p, int lane, int place,
                                            const RawToken<T>& raw, SharedTokens<T>* shared) {
  ReadToken<T> read;
  Token<T> token;
  evaluate_token<T>(p, lane, raw, read, token);
  put_channels<T>(lane, read, &shared->channels[place]);
#pragma unroll
  for (int i = 0; i < T::kValues; ++i)
    if (T::reads_value(lane, i))
      shared->v[place][T::value_step(i) + (lane & 31)] = from_bits(raw.v[i], token_type<T>(p));
  if ((lane & 31) != 0) return;
  shared->q_dot_k[place] = token.q_dot_k;
  shared->q_inverse_norm[place] = token.q_inverse_norm;
  shared->k_inverse_norm[place] = token.k_inverse_norm;
  shared->beta[place] = token.beta;
  if constexpr (!T::variant.channel) shared->decay[place] = read.decay[0];
}

// `column` is the lane's first, counted from the CTA's.
template <class T>
__device__ __forceinline__ void take_token(const SharedTokens<T>* shared, int place, int lane,
                                           int column, Token<T>& token) {
  get_channels<T>(lane, &shared->channels[place], token);
  token.q_dot_k = shared->q_dot_k[place];
  token.q_inverse_norm = shared->q_inverse_norm[place];
  token.k_inverse_norm = shared->k_inverse_norm[place];
  token.beta = shared->beta[place];
  if constexpr (!T::variant.channel) token.decay[0] = shared->decay[place];
#pragma unroll
  for (int i = 0; i < T::kOwned; ++i) token.v[i] = shared->v[place][column + T::column(0, i)];
}

}  // namespace linattn::cuda::decode
