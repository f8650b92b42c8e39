// Preparation with a gate a channel. It works with products of decays inside blocks of 16 tokens,
// never with differences of cumulated logarithms: any gate in [-inf, 0] is right, since every
// factor is at most 1.
#pragma once

#include "cuda/portable/chunk_pairs.cuh"
#include "cuda/portable/chunk_prepare.exact.cuh"
#include "cuda/portable/chunk_prepare.record.cuh"

namespace linattn::cuda::chunk {

template <Type kType, int kDim>
struct PrepareChannelShared {
  static constexpr int kParts = kDim == 256 ? 2 : 1;  // warps that share a sub-block's channels
  static constexpr int kRow = kDim * kBytes<kType>;
  // Swizzled tiles. 16: rows 16.. from row 16's start, keys ..15 to row 15's end.
  alignas(16) char q16[kBlock * kRow], k16[kBlock * kRow], end16[kBlock * kRow];
  // 8, for each block of 16: 8 rows of q, 8 of k from row 8's start; keys ..7 to row 7's end.
  alignas(16) char rows8[2][kBlock * kRow], end8[2][kSub * kRow];
  alignas(16) SquareA<kType> a;
  float beta[kChunk];
  float total[4][kDim];  // decay of each sub-block
  float squares[kParts][4][kBlock];
  OfA<kType> pairs[kParts][4][64];
  float unit[kWide<kType> ? 64 : 1];  // of the rows of k16, end16, rows8 and end8 as integers
};

// kPer neighbouring channels of a row of a tile.
template <Type kType, int kDim, int kPer>
__device__ __forceinline__ void store_channels(char* tile, int row, int channel,
                                               const float (&x)[kPer], const float (&scale)[kPer]) {
  char* to = tile + number_at<kType, kDim>(row, channel);
  if constexpr (kWide<kType> && kPer == 4)
    *reinterpret_cast<float4*>(to) =
        make_float4(x[0] * scale[0], x[1] * scale[1], x[2] * scale[2], x[3] * scale[3]);
  else if constexpr (kWide<kType>)
    *reinterpret_cast<float2*>(to) = make_float2(x[0] * scale[0], x[1] * scale[1]);
  else if constexpr (kPer == 4)
    *reinterpret_cast<uint2*>(to) =
        make_uint2(pack<kIsBf16<kType>>(x[0] * scale[0], x[1] * scale[1]),
                   pack<kIsBf16<kType>>(x[2] * scale[2], x[3] * scale[3]));
  else
    *reinterpret_cast<uint32_t*>(to) = pack<kIsBf16<kType>>(x[0] * scale[0], x[1] * scale[1]);
}

// sums += 16 rows times 8 keys.
template <Type kType, int kDim>
__device__ __forceinline__ void multiply_eight(float (&sums)[4], uint32_t rows, uint32_t keys,
                                               int lane) {
#pragma unroll
  for (int kk = 0; kk < kDim / 16; kk += 2) {
    Left<kType> a;
    if constexpr (kWide<kType>) {
#pragma unroll
      for (int i = kk; i < kk + 2; ++i) {
        float b[2][2];
#pragma unroll
        for (int block = 0; block < 2; ++block)
          ptx::load_shared(
              keys + number_at<kType, kDim>(lane / 4, i * 16 + block * 8 + lane % 4 * 2),
              b[block][0], b[block][1]);
        load_left<kType, kDim>(a, rows, 0, i, lane);
        multiply_wide(sums, sums, a, b);
      }
    } else {
      uint32_t b[4];
      ptx::ldmatrix_x4(b, keys + swizzled<kDim>(lane % 8, kk * 2 + lane / 8));
      load_left<kType, kDim>(a, rows, 0, kk, lane);
      ptx::mma_m16n8k16<kIsBf16<kType>>(sums, a.word, b[0], b[1]);
      load_left<kType, kDim>(a, rows, 0, kk + 1, lane);
      ptx::mma_m16n8k16<kIsBf16<kType>>(sums, a.word, b[2], b[3]);
    }
  }
}

// Products of the sub-blocks' rows with the keys before them, by warps 0 to 3.
template <Type kType, int kDim>
__device__ __forceinline__ void multiply_blocks(const ChunkRecord& layout, char* record,
                                                PrepareChannelShared<kType, kDim>& s, int task,
                                                int lane) {
  const int row = lane / 4, column = lane % 4 * 2;
  if (task < 2) {  // rows 16.. against keys ..15: P, A
    if (kWide<kType> && task == 1) return;
    const uint32_t rows = ptx::shared_address(task == 0 ? s.q16 : s.k16);
    const uint32_t keys = ptx::shared_address(s.end16);
    float sums[2][4] = {};
#pragma unroll
    for (int kk = 0; kk < kDim / 16; ++kk) {
      Left<kType> a;
      Right<kType> b;
      load_left<kType, kDim>(a, rows, 0, kk, lane);
      load_right<kType, kDim>(b, keys, 0, kk, lane);
      multiply<kType>(sums, a, b);
    }
#pragma unroll
    for (int tile = 0; tile < 2; ++tile)
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const int i = kBlock + row + e / 2 * 8, j = tile * 8 + column + e % 2;
        if (task == 0)
          store_p<kType>(record, layout, i, j, sums[tile][e]);
        else if constexpr (!kWide<kType>)
          s.a[i][j] = s.beta[i] * sums[tile][e];
      }
    return;
  }
  const int block = task - 2, first = block * kBlock;  // rows 8.. of a block against its keys ..7
  float sums[4] = {};
  multiply_eight<kType, kDim>(sums, ptx::shared_address(s.rows8[block]),
                              ptx::shared_address(s.end8[block]), lane);
#pragma unroll
  for (int e = 0; e < 2; ++e) {
    const int i = first + kSub + row, j = first + column + e;
    store_p<kType>(record, layout, i, j, sums[e]);
    if constexpr (!kWide<kType>) s.a[i][j] = s.beta[i] * sums[2 + e];
    store_p<kType>(record, layout, first + row, first + kSub + column + e, 0.0f);
  }
}

// The parts of A that multiply_blocks leaves out of fp32's; rows of keys become integers.
template <int kDim>
__device__ __forceinline__ void multiply_blocks_exactly(PrepareChannelShared<Type::f32, kDim>& s,
                                                        int thread) {
  __syncthreads();  // the rows have been multiplied
  for (int i = thread / 32; i < 64; i += 4) {
    char* const tile = i < 16   ? s.k16
                       : i < 32 ? s.end16
                       : i < 48 ? s.rows8[i / 8 % 2]
                                : s.end8[i / 8 % 2];
    const int row = i < 32 ? i % 16 : i < 48 ? kSub + i % 8 : i % 8;
    make_integers<kDim>(tile, row, &s.unit[i], thread % 32);
  }
  __syncthreads();
  if (thread >= 96) return;
  const bool whole = thread < 64;  // rows 16.. against keys ..15
  const int block = thread / 16 % 2, first = block * kBlock;
  const int row = (whole ? thread / 8 : thread / 4 % 4) * 2;
  const int key = thread % (whole ? 8 : 4) * 2;
  double x[2][2];
  if (whole)
    multiply_integers<kDim>(s.k16, s.end16, row, key, x);
  else
    multiply_integers<kDim>(s.rows8[block], s.end8[block], kSub + row, key, x);
  const float* row_unit = s.unit + (whole ? 0 : 32 + block * kSub) + row;
  const float* key_unit = s.unit + (whole ? 16 : 48 + block * kSub) + key;
#pragma unroll
  for (int e = 0; e < 4; ++e) {
    const int i = (whole ? kBlock : first + kSub) + row + e / 2;
    const int j = (whole ? 0 : first) + key + e % 2;
    s.a[i][j] = x[e / 2][e % 2] * static_cast<double>(s.beta[i] * row_unit[e / 2]) *
                static_cast<double>(key_unit[e % 2]);
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

  template <Type kType>
  __device__ __forceinline__ void unpack_to(float (&x)[kSub][kWords * 4 / kBytes<kType>]) const {
#pragma unroll
    for (int r = 0; r < kSub; ++r)
#pragma unroll
      for (int w = 0; w < kWords; ++w) {
        if constexpr (kWide<kType>)
          x[r][w] = __uint_as_float(word[r][w]);
        else
          unpack<kIsBf16<kType>>(word[r][w], x[r][2 * w], x[r][2 * w + 1]);
      }
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

template <Type kType, int kDim>
__device__ __forceinline__ void prepare_channel(const ChunkParams& p, const Place& place,
                                                char* record,
                                                PrepareChannelShared<kType, kDim>& s) {
  constexpr int kParts = PrepareChannelShared<kType, kDim>::kParts, kEach = kBytes<kType>;
  constexpr int kPer = kDim == 64 ? 2 : 4;  // channels a lane
  const ChunkRecord layout{kDim, true, p.delta, kEach};
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
    RawRows<kPer * kEach / 4> raw_q, raw_k;
    raw_q.load(p.args.q, kEach * problem.q.at(place.batch, t0, place.h, channel),
               kEach * problem.q.t, rows);
    raw_k.load(p.args.k, kEach * problem.k.at(place.batch, t0, place.h, channel),
               kEach * problem.k.t, rows);
    const int64_t g_at = problem.g.at(place.batch, t0, place.hv, channel);
    if (problem.g.type == Type::f32) {
      RawRows<kPer> raw_g;
      raw_g.load(p.args.g, 4 * g_at, 4 * problem.g.t, rows);
      load_side();
      raw_g.template unpack_to<Type::f32>(d);
    } else {
      RawRows<kPer / 2> raw_g;
      raw_g.load(p.args.g, 2 * g_at, 2 * problem.g.t, rows);
      load_side();
      if (problem.g.type == Type::bf16)
        raw_g.template unpack_to<Type::bf16>(d);
      else
        raw_g.template unpack_to<Type::f16>(d);
    }
    raw_q.template unpack_to<kType>(q);
    raw_k.template unpack_to<kType>(k);
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
    const float inverse = inverse_root<kType>(sum + 1e-6f);
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
    store_channels<kType, kDim>(record + layout.q(), row, channel, row_q, before32);
    if (p.delta) store_channels<kType, kDim>(record + layout.k(), row, channel, row_k, before32);
    if (block == 1) {
      store_channels<kType, kDim>(s.q16, row16, channel, row_q, before16);
      store_channels<kType, kDim>(s.k16, row16, channel, row_k, before16);
    }
    if (odd) {
      store_channels<kType, kDim>(s.rows8[block], r, channel, row_q, ones);
      store_channels<kType, kDim>(s.rows8[block], kSub + r, channel, row_k, ones);
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
    store_channels<kType, kDim>(record + layout.update(), row, channel, row_k, after32);
    if (block == 0) store_channels<kType, kDim>(s.end16, row, channel, row_k, after16);
    if (!odd) store_channels<kType, kDim>(s.end8[block], r, channel, row_k, ones);
  }
  s.pairs[part][sub][lane] = pair_group<0, OfA<kType>>(q, k, d, lane);
  s.pairs[part][sub][32 + lane] = pair_group<1, OfA<kType>>(q, k, d, lane);
  __syncthreads();

  for (int i = thread; i < 4 * 64; i += static_cast<int>(blockDim.x)) {
    const int of = i / 64;
    OfA<kType> sum = 0;
#pragma unroll
    for (int w = 0; w < kParts; ++w) sum += s.pairs[w][of][i % 64];
    const Pair pair = pair_of(i % 64 / 32, i % 32);
    const int row = of * kSub + pair.i, column = of * kSub + pair.j;
    if (pair.is_a) {
      s.a[row][column] = s.beta[row] * sum;
      store_p<kType>(record, layout, column, row, 0.0f);  // above the diagonal
    } else {
      store_p<kType>(record, layout, row, column, static_cast<float>(sum));
    }
  }
  if (warp < 4) multiply_blocks<kType, kDim>(layout, record, s, warp, lane);
  if constexpr (kWide<kType>)
    if (p.delta) multiply_blocks_exactly<kDim>(s, thread);
}

}  // namespace linattn::cuda::chunk
