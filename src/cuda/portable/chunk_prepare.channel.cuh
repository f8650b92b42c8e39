// Preparation with a gate a channel. It works with products of decays inside blocks of 16 tokens,
// never with differences of cumulated logarithms: any gate in [-inf, 0] is right, since every
// factor is at most 1.
#pragma once

#include "cuda/portable/chunk_prepare.record.cuh"

namespace linattn::cuda::chunk {

inline constexpr int kSub = 8;  // rows of a sub-block: one warp's

template <int kDim>
struct PrepareChannelShared {
  static constexpr int kParts = kDim == 256 ? 2 : 1;  // warps that share a sub-block's channels
  // Swizzled tiles. 16: rows 16.. from row 16's start, keys ..15 to row 15's end.
  alignas(16) char q16[kBlock * kDim * 2], k16[kBlock * kDim * 2], end16[kBlock * kDim * 2];
  // 8, for each block of 16: 8 rows of q, 8 of k from row 8's start; keys ..7 to row 7's end.
  alignas(16) char rows8[2][kBlock * kDim * 2], end8[2][kSub * kDim * 2];
  float a[kChunk][kChunk + 4];
  float beta[kChunk];
  float total[4][kDim];  // decay of each sub-block
  float squares[kParts][4][kBlock];
  float pairs[kParts][4][64];
};

// Which pair of a sub-block's tokens value l of group g stands for: tril(Q~ K^T), or A below it.
// A group has columns 2g, 7 - 2g, 2g + 1, 6 - 2g; column j has 8 - j values of the first kind, then
// 7 - j of the second.
struct Pair {
  bool is_a;
  int i, j;
};
__device__ __forceinline__ Pair pair_of(int g, int l) {
  const int columns[4] = {2 * g, 7 - 2 * g, 2 * g + 1, 6 - 2 * g};
#pragma unroll
  for (int c = 0; c < 4; ++c) {
    const int j = columns[c], rows = kSub - j;
    if (l < rows) return {false, j + l, j};
    if (l < 2 * rows - 1) return {true, j + 1 + l - rows, j};
    l -= 2 * rows - 1;
  }
  return {false, 0, 0};
}

// A column of pairs: the key decays step by step while the rows below it are met.
template <int kColumn, int kAt, int kPer>
__device__ __forceinline__ void pair_column(const float (&q)[kSub][kPer],
                                            const float (&k)[kSub][kPer],
                                            const float (&d)[kSub][kPer], float (&x)[32]) {
  constexpr int kRows = kSub - kColumn;
  float key[kPer];
#pragma unroll
  for (int e = 0; e < kPer; ++e) key[e] = k[kColumn][e];
#pragma unroll
  for (int i = 0; i < kRows; ++i) {
    float with_q = 0.0f, with_k = 0.0f;
#pragma unroll
    for (int e = 0; e < kPer; ++e) {
      if (i > 0) key[e] *= d[kColumn + i][e];
      with_q = fmaf(key[e], q[kColumn + i][e], with_q);
      with_k = fmaf(key[e], k[kColumn + i][e], with_k);
    }
    x[kAt + i] = with_q;
    if (i > 0) x[kAt + kRows + i - 1] = with_k;
  }
}

template <int kGroup, int kPer>
__device__ __forceinline__ float pair_group(const float (&q)[kSub][kPer],
                                            const float (&k)[kSub][kPer],
                                            const float (&d)[kSub][kPer], int lane) {
  constexpr int j = 2 * kGroup;
  float x[32];
  pair_column<j, 0>(q, k, d, x);
  pair_column<7 - j, 15 - 2 * j>(q, k, d, x);
  pair_column<j + 1, 16>(q, k, d, x);
  pair_column<6 - j, 29 - 2 * j>(q, k, d, x);
  return reduce_32(x, lane);
}

// kPer neighbouring channels of a row of a swizzled tile.
template <bool kBf16, int kDim, int kPer>
__device__ __forceinline__ void store_channels(char* tile, int row, int channel,
                                               const float (&x)[kPer], const float (&scale)[kPer]) {
  char* to = tile + swizzled<kDim>(row, channel / 8) + channel % 8 * 2;
  if constexpr (kPer == 4)
    *reinterpret_cast<uint2*>(to) = make_uint2(pack<kBf16>(x[0] * scale[0], x[1] * scale[1]),
                                               pack<kBf16>(x[2] * scale[2], x[3] * scale[3]));
  else
    *reinterpret_cast<uint32_t*>(to) = pack<kBf16>(x[0] * scale[0], x[1] * scale[1]);
}

// Products of the sub-blocks' rows with the keys before them, by warps 0 to 3.
template <bool kBf16, int kDim>
__device__ __forceinline__ void multiply_blocks(const ChunkRecord& layout, char* record,
                                                PrepareChannelShared<kDim>& s, int task, int lane) {
  const int row = lane / 4, column = lane % 4 * 2;
  if (task < 2) {  // rows 16.. against keys ..15: P, A
    const uint32_t rows = ptx::shared_address(task == 0 ? s.q16 : s.k16);
    const uint32_t keys = ptx::shared_address(s.end16);
    float sums[2][4] = {};
#pragma unroll
    for (int kk = 0; kk < kDim / 16; ++kk) {
      uint32_t a[4], b[4];
      load_a<kDim>(a, rows, 0, kk, lane);
      load_b<kDim>(b, keys, 0, kk, lane);
      ptx::mma_m16n8k16<kBf16>(sums[0], a, b[0], b[1]);
      ptx::mma_m16n8k16<kBf16>(sums[1], a, b[2], b[3]);
    }
#pragma unroll
    for (int tile = 0; tile < 2; ++tile)
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const int i = kBlock + row + e / 2 * 8, j = tile * 8 + column + e % 2;
        if (task == 0)
          store_p<kBf16>(record, layout, i, j, sums[tile][e]);
        else
          s.a[i][j] = s.beta[i] * sums[tile][e];
      }
    return;
  }
  const int block = task - 2, first = block * kBlock;  // rows 8.. of a block against its keys ..7
  const uint32_t rows = ptx::shared_address(s.rows8[block]);
  const uint32_t keys = ptx::shared_address(s.end8[block]);
  float sums[4] = {};
#pragma unroll
  for (int kk = 0; kk < kDim / 16; kk += 2) {
    uint32_t a[4], b[4];
    ptx::ldmatrix_x4(b, keys + swizzled<kDim>(lane % 8, kk * 2 + lane / 8));
    load_a<kDim>(a, rows, 0, kk, lane);
    ptx::mma_m16n8k16<kBf16>(sums, a, b[0], b[1]);
    load_a<kDim>(a, rows, 0, kk + 1, lane);
    ptx::mma_m16n8k16<kBf16>(sums, a, b[2], b[3]);
  }
#pragma unroll
  for (int e = 0; e < 2; ++e) {
    const int i = first + kSub + row, j = first + column + e;
    store_p<kBf16>(record, layout, i, j, sums[e]);
    s.a[i][j] = s.beta[i] * sums[2 + e];
    store_p<kBf16>(record, layout, first + row, first + kSub + column + e, 0.0f);
  }
}

// A lane's channels of a sub-block's rows as they lie in memory, kWords words a row.
template <int kWords>
struct RawRows {
  uint32_t word[kSub][kWords];

  // From `offset` bytes on, rows `stride` bytes apart, of which `rows` (at least one) exist; the
  // others repeat the last.
  __device__ __forceinline__ void load(const void* data, int64_t offset, int64_t stride, int rows) {
    const char* row = static_cast<const char*>(data) + offset;
#pragma unroll
    for (int r = 0; r < kSub; ++r) {
      if constexpr (kWords == 4) {
        const uint4 four = *reinterpret_cast<const uint4*>(row);
        word[r][0] = four.x, word[r][1] = four.y, word[r][2] = four.z, word[r][3] = four.w;
      } else if constexpr (kWords == 2) {
        const uint2 two = *reinterpret_cast<const uint2*>(row);
        word[r][0] = two.x, word[r][1] = two.y;
      } else {
        word[r][0] = *reinterpret_cast<const uint32_t*>(row);
      }
      row += r + 1 < rows ? stride : 0;
    }
  }

  // Of 16-bit numbers.
  template <bool kBf16>
  __device__ __forceinline__ void unpack_to(float (&x)[kSub][2 * kWords]) const {
#pragma unroll
    for (int r = 0; r < kSub; ++r)
#pragma unroll
      for (int w = 0; w < kWords; ++w) unpack<kBf16>(word[r][w], x[r][2 * w], x[r][2 * w + 1]);
  }
};

// dt_bias of a lane's channels; zeros where there is none.
template <int kPer>
__device__ __forceinline__ void load_bias(const Problem& problem, const linattn_args& args,
                                          int64_t hv, int channel, int valid, float (&bias)[kPer]) {
  const HeadView& view = problem.dt_bias;
#pragma unroll
  for (int e = 0; e < kPer; ++e) bias[e] = 0.0f;
  if (!view.present()) return;
  const int64_t at = hv * view.h + channel * view.k;
  if (view.type == Type::f32) {
#pragma unroll
    for (int e = 0; e < kPer; ++e)
      if (e < valid) bias[e] = static_cast<const float*>(args.dt_bias)[at + e * view.k];
  } else {
#pragma unroll
    for (int e = 0; e < kPer; ++e)
      if (e < valid) bias[e] = load_element(view.type, args.dt_bias, at + e * view.k);
  }
}

template <bool kBf16, int kDim>
__device__ __forceinline__ void prepare_channel(const ChunkParams& p, const Place& place,
                                                char* record, PrepareChannelShared<kDim>& s) {
  constexpr int kParts = PrepareChannelShared<kDim>::kParts;
  constexpr int kPer = kDim == 64 ? 2 : 4;  // channels a lane
  const ChunkRecord layout{kDim, true, p.delta};
  const Problem& problem = p.problem;
  const int thread = static_cast<int>(threadIdx.x), lane = thread % 32, warp = thread / 32;
  const int sub = warp % 4, part = warp / 4, block = sub / 2;
  const bool odd = sub % 2 != 0;
  const int channel = part * 128 + lane * kPer, valid = p.dim_k - channel;

  float q[kSub][kPer], k[kSub][kPer], d[kSub][kPer], bias[kPer];
  const int64_t t0 = place.begin + sub * kSub;
  const int rows = place.rows - sub * kSub;
  float factor;
  const auto load_side = [&] {
    load_bias<kPer>(problem, p.args, place.hv, channel, valid, bias);
    factor = gate_factor(problem, p.args, place.hv);
    if (thread < kChunk)
      s.beta[thread] = p.delta && thread < place.rows
                           ? load_beta(problem, p.args, place.batch, place.begin + thread, place.hv)
                           : 0.0f;
  };
  if (p.vectors && valid >= kPer && rows > 0) {
    // All loads are under way before the first is waited for: a branch between two would wait.
    RawRows<kPer / 2> raw_q, raw_k;
    raw_q.load(p.args.q, 2 * problem.q.at(place.batch, t0, place.h, channel), 2 * problem.q.t,
               rows);
    raw_k.load(p.args.k, 2 * problem.k.at(place.batch, t0, place.h, channel), 2 * problem.k.t,
               rows);
    const int64_t g_at = problem.g.at(place.batch, t0, place.hv, channel);
    if (problem.g.type == Type::f32) {
      RawRows<kPer> raw_g;
      raw_g.load(p.args.g, 4 * g_at, 4 * problem.g.t, rows);
      load_side();
#pragma unroll
      for (int r = 0; r < kSub; ++r)
#pragma unroll
        for (int e = 0; e < kPer; ++e) d[r][e] = __uint_as_float(raw_g.word[r][e]);
    } else {
      RawRows<kPer / 2> raw_g;
      raw_g.load(p.args.g, 2 * g_at, 2 * problem.g.t, rows);
      load_side();
      if (problem.g.type == Type::bf16)
        raw_g.template unpack_to<true>(d);
      else
        raw_g.template unpack_to<false>(d);
    }
    raw_q.template unpack_to<kBf16>(q);
    raw_k.template unpack_to<kBf16>(k);
#pragma unroll
    for (int r = 0; r < kSub; ++r)
#pragma unroll
      for (int e = 0; e < kPer; ++e)
        if (r >= rows) q[r][e] = k[r][e] = 0.0f;
  } else {
    load_side();
#pragma unroll
    for (int r = 0; r < kSub; ++r) {
      const int there = r < rows ? valid : 0;
      const int64_t t = t0 + r;
      load_channels(problem.q.type, p.args.q, problem.q.at(place.batch, t, place.h, channel), there,
                    false, q[r]);
      load_channels(problem.q.type, p.args.k, problem.k.at(place.batch, t, place.h, channel), there,
                    false, k[r]);
      load_channels(problem.g.type, p.args.g, problem.g.at(place.batch, t, place.hv, channel),
                    there, false, d[r]);
    }
  }
  decays_of(problem, bias, factor, d);
#pragma unroll
  for (int r = 0; r < kSub; ++r)
#pragma unroll
    for (int e = 0; e < kPer; ++e)
      if (r >= rows || e >= valid) d[r][e] = 1.0f;

  if (problem.qk_norm) {
    float squares[kBlock];
#pragma unroll
    for (int r = 0; r < kSub; ++r) {
      float qq = 0.0f, kk = 0.0f;
#pragma unroll
      for (int e = 0; e < kPer; ++e) {
        qq = fmaf(q[r][e], q[r][e], qq);
        kk = fmaf(k[r][e], k[r][e], kk);
      }
      squares[r] = qq, squares[kSub + r] = kk;
    }
    float sum = reduce_16(squares, lane);
    if constexpr (kParts > 1) {
      if (lane < kBlock) s.squares[part][sub][lane] = sum;
      __syncthreads();
      sum += s.squares[1 - part][sub][lane % kBlock];
    }
    const float inverse = rsqrtf(sum + 1e-6f);
#pragma unroll
    for (int r = 0; r < kSub; ++r) {
      const float inverse_q = ptx::shuffle(inverse, r);
      const float inverse_k = ptx::shuffle(inverse, kSub + r);
#pragma unroll
      for (int e = 0; e < kPer; ++e) q[r][e] *= inverse_q, k[r][e] *= inverse_k;
    }
  }

  float total[kPer];
#pragma unroll
  for (int e = 0; e < kPer; ++e) {
    total[e] = 1.0f;
#pragma unroll
    for (int r = 0; r < kSub; ++r) total[e] *= d[r][e], q[r][e] *= p.scale;
    s.total[sub][channel + e] = total[e];
  }
  __syncthreads();

  float before16[kPer], before32[kPer], after16[kPer], after32[kPer], ones[kPer];
#pragma unroll
  for (int e = 0; e < kPer; ++e) {
    const float t_0 = s.total[0][channel + e], t_1 = s.total[1][channel + e];
    const float t_2 = s.total[2][channel + e], t_3 = s.total[3][channel + e];
    const float first = block == 0 ? t_0 : t_2, second = block == 0 ? t_1 : t_3;
    before16[e] = odd ? first : 1.0f;
    after16[e] = odd ? 1.0f : second;
    before32[e] = before16[e] * (block == 0 ? 1.0f : t_0 * t_1);
    after32[e] = after16[e] * (block == 0 ? t_2 * t_3 : 1.0f);
    ones[e] = 1.0f;
    total[e] = t_0 * t_1 * (t_2 * t_3);
  }
  if (sub == 0) {
#pragma unroll
    for (int e = 0; e < kPer; ++e)
      reinterpret_cast<float*>(record + layout.scalars())[channel + e] = total[e];
  }

  float from_start[kPer], to_end[kPer];
#pragma unroll
  for (int e = 0; e < kPer; ++e) from_start[e] = to_end[e] = 1.0f;
#pragma unroll
  for (int r = 0; r < kSub; ++r) {
    float row_q[kPer], row_k[kPer];
#pragma unroll
    for (int e = 0; e < kPer; ++e) {
      from_start[e] *= d[r][e];
      row_q[e] = q[r][e] * from_start[e], row_k[e] = k[r][e] * from_start[e];
    }
    const int row = sub * kSub + r, row16 = row % kBlock;
    store_channels<kBf16, kDim>(record + layout.q(), row, channel, row_q, before32);
    if (p.delta) store_channels<kBf16, kDim>(record + layout.k(), row, channel, row_k, before32);
    if (block == 1) {
      store_channels<kBf16, kDim>(s.q16, row16, channel, row_q, before16);
      store_channels<kBf16, kDim>(s.k16, row16, channel, row_k, before16);
    }
    if (odd) {
      store_channels<kBf16, kDim>(s.rows8[block], r, channel, row_q, ones);
      store_channels<kBf16, kDim>(s.rows8[block], kSub + r, channel, row_k, ones);
    }
  }
#pragma unroll
  for (int r = kSub - 1; r >= 0; --r) {
    float row_k[kPer];
#pragma unroll
    for (int e = 0; e < kPer; ++e) {
      row_k[e] = k[r][e] * to_end[e];
      to_end[e] *= d[r][e];
    }
    const int row = sub * kSub + r;
    store_channels<kBf16, kDim>(record + layout.update(), row, channel, row_k, after32);
    if (block == 0) store_channels<kBf16, kDim>(s.end16, row, channel, row_k, after16);
    if (!odd) store_channels<kBf16, kDim>(s.end8[block], r, channel, row_k, ones);
  }
  s.pairs[part][sub][lane] = pair_group<0>(q, k, d, lane);
  s.pairs[part][sub][32 + lane] = pair_group<1>(q, k, d, lane);
  __syncthreads();

  for (int i = thread; i < 4 * 64; i += static_cast<int>(blockDim.x)) {
    const int of = i / 64;
    float sum = 0.0f;
#pragma unroll
    for (int w = 0; w < kParts; ++w) sum += s.pairs[w][of][i % 64];
    const Pair pair = pair_of(i % 64 / 32, i % 32);
    const int row = of * kSub + pair.i, column = of * kSub + pair.j;
    if (pair.is_a) {
      s.a[row][column] = s.beta[row] * sum;
      store_p<kBf16>(record, layout, column, row, 0.0f);  // above the diagonal
    } else {
      store_p<kBf16>(record, layout, row, column, sum);
    }
  }
  if (warp < 4) multiply_blocks<kBf16, kDim>(layout, record, s, warp, lane);
}

}  // namespace linattn::cuda::chunk
