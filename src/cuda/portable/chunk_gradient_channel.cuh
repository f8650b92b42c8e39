// Gradients of a chunk with a gate per key channel. A pair of tokens has a vector of decays, so the
// chunk is halved: products of a right and a left half factor at their border, down to sub-blocks
// of 8 rows, whose pairs are walked with running products. Factors are at most 1 and nothing is
// divided or subtracted. The gradient of a log decay gathers exactly the terms whose path crosses
// its token (docs/kernels/cpu_backward.md): a decay of 0 gets 0.
#pragma once

#include "cuda/portable/chunk_gradient_channel.rows.cuh"

namespace linattn::cuda {
namespace chunk::gradients {

// Gradients dx of rows under the decays from the sub-block's start, times `before`: they go to dq
// (and, from dy, dk), and row r's log decay gets sum_{i >= r} of row times gradient, all of which
// cross it. Returns that sum over all rows.
template <bool kDelta>
__device__ __forceinline__ void add_prefix(SubBlock& x, const float* dx, const float* dy,
                                           int stride, const float (&before)[2], float (&sum)[2]) {
  float decay[2] = {before[0], before[1]}, terms[kSub][2];
#pragma unroll
  for (int r = 0; r < kSub; ++r) {
    const float2 by_q = *reinterpret_cast<const float2*>(dx + r * stride);
    const float of_q[2] = {by_q.x, by_q.y};
    float of_k[2] = {};
    if constexpr (kDelta) {
      const float2 by_k = *reinterpret_cast<const float2*>(dy + r * stride);
      of_k[0] = by_k.x, of_k[1] = by_k.y;
    }
#pragma unroll
    for (int e = 0; e < 2; ++e) {
      decay[e] *= x.d[r][e];
      const float to_q = decay[e] * of_q[e], to_k = decay[e] * of_k[e];
      x.dq[r][e] += to_q;
      terms[r][e] = to_q * half_of(x.q[r], e);
      if constexpr (kDelta) {
        x.dk[r][e] += to_k;
        terms[r][e] = fmaf(to_k, half_of(x.k[r], e), terms[r][e]);
      }
    }
  }
  sum[0] = sum[1] = 0.0f;
#pragma unroll
  for (int r = kSub - 1; r >= 0; --r)
#pragma unroll
    for (int e = 0; e < 2; ++e) x.dlog[r][e] += sum[e] += terms[r][e];
}

// The same for keys under the decays to the sub-block's end, times `after`: sum_{i < r} crosses r.
__device__ __forceinline__ void add_suffix(SubBlock& x, const float* dx, int stride,
                                           const float (&after)[2], float (&sum)[2]) {
  float decay[2] = {after[0], after[1]}, terms[kSub][2];
#pragma unroll
  for (int r = kSub - 1; r >= 0; --r) {
    const float2 by_k = *reinterpret_cast<const float2*>(dx + r * stride);
    const float of_k[2] = {by_k.x, by_k.y};
#pragma unroll
    for (int e = 0; e < 2; ++e) {
      const float to_k = decay[e] * of_k[e];
      decay[e] *= x.d[r][e];
      x.dk[r][e] += to_k;
      terms[r][e] = to_k * half_of(x.k[r], e);
    }
  }
  sum[0] = sum[1] = 0.0f;
#pragma unroll
  for (int r = 0; r < kSub; ++r)
#pragma unroll
    for (int e = 0; e < 2; ++e) {
      x.dlog[r][e] += sum[e];
      sum[e] += terms[r][e];
    }
}

// One channel of a sub-block.
struct Column {
  float dq[kSub], dk[kSub], dlog[kSub];
};

// Changes places with the column in the products' places that this lane alone has read. With both
// channels in registers, the pairs would spill.
__device__ __forceinline__ void exchange(Column& x, float* first, float* second, int stride) {
  const Column before = x;
#pragma unroll
  for (int r = 0; r < kSub; ++r) {
    auto* two = reinterpret_cast<float2*>(first + r * stride);
    x.dq[r] = two->x, x.dk[r] = two->y;
    *two = make_float2(before.dq[r], before.dk[r]);
  }
#pragma unroll
  for (int r = 0; r < kSub; r += 2) {
    auto* two = reinterpret_cast<float2*>(second + r / 2 * stride);
    x.dlog[r] = two->x, x.dlog[r + 1] = two->y;
    *two = make_float2(before.dlog[r], before.dlog[r + 1]);
  }
}

// Pairs inside a sub-block, of one channel: half `e` of the packed rows. Of column j, w runs down
// the rows: the key under the decays on the way; h runs up: the gradient that reaches a row's side
// of the path. Decay i gets w_i h_i.
template <int kDim, bool kDelta>
__device__ __forceinline__ void add_pairs(Column& x, const SubBlock& rows, int e, int sub,
                                          const GradientShared<kDim>& s) {
  const int first = sub * kSub, up = e == 0 ? 16 : 0;
  float q[kSub], k[kSub], d[kSub];
#pragma unroll
  for (int r = 0; r < kSub; ++r) {
    q[r] = __uint_as_float(rows.q[r] << up & 0xffff0000u);
    k[r] = __uint_as_float(rows.k[r] << up & 0xffff0000u);
    d[r] = e == 0 ? rows.d[r][0] : rows.d[r][1];
  }
#pragma unroll
  for (int j = 0; j < kSub; ++j) {
    float w[kSub];
    w[j] = k[j];
    const float same = s.dp[first + j][first + j];
    x.dq[j] = fmaf(same, w[j], x.dq[j]);
#pragma unroll
    for (int i = j + 1; i < kSub; ++i) {
      w[i] = w[i - 1] * d[i];
      x.dq[i] = fmaf(s.dp[first + i][first + j], w[i], x.dq[i]);
      if (kDelta) x.dk[i] = fmaf(s.da[first + i][first + j], w[i], x.dk[i]);
    }
    float h = 0.0f;
#pragma unroll
    for (int i = kSub - 1; i > j; --i) {
      h = fmaf(s.dp[first + i][first + j], q[i], h);
      if (kDelta) h = fmaf(s.da[first + i][first + j], k[i], h);
      x.dlog[i] = fmaf(w[i], h, x.dlog[i]);
      h *= d[i];
    }
    x.dk[j] += fmaf(same, q[j], h);
  }
}

// dP and dA as 16-bit operands.
template <int kDim, bool kDelta>
__device__ __forceinline__ void narrow_pairs(GradientShared<kDim>& s, int thread) {
  for (int i = thread; i < kChunk * kChunk / 2; i += gradient_threads(kDim)) {
    const int row = i / (kChunk / 2), column = i % (kChunk / 2) * 2;
    const auto put = [&](char* square, char* square_low, const float (&x)[kChunk][kPairRow]) {
      uint32_t high, low;
      pack_split<kBf16>(x[row][column], x[row][column + 1], high, low);
      *reinterpret_cast<uint32_t*>(square_at(square, row, column)) = high;
      if (kDelta) *reinterpret_cast<uint32_t*>(square_at(square_low, row, column)) = low;
    };
    put(s.dp_square, s.dp_square_low(), s.dp);
    if (kDelta) put(s.da_square, s.da_square_low(), s.da);
  }
}

// Rows of the products between halves in GradientShared's work: gradients of q16, k16, end16, then
// of rows8 and end8 of both blocks.
inline constexpr int kOfQ16 = 0, kOfK16 = 16, kOfEnd16 = 32, kOf8 = 48, kRows8 = 24;

template <int kDim, bool kDelta>
__device__ __forceinline__ void multiply_halves(ChannelGradientShared<kDim>& s, int warp,
                                                int lane) {
  // Parts of a split matrix: over repeated keys its terms cancel.
  constexpr int kParts = kDelta ? 2 : 1;
  const uint32_t dp[2] = {ptx::shared_address(s.dp_square), ptx::shared_address(s.dp_square_low())};
  const uint32_t da[2] = {ptx::shared_address(s.da_square), ptx::shared_address(s.da_square_low())};
  const int m = lane / 8, lower = lane % 8;
  const auto square = [&](uint32_t base, int row, int column) {
    return base + swizzled_square(row, column / 8);
  };
  const auto multiply = [](float (&x)[2][4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1,
                           uint32_t b2, uint32_t b3) {
    ptx::mma_m16n8k16<kBf16>(x[0], a, b0, b1);
    ptx::mma_m16n8k16<kBf16>(x[1], a, b2, b3);
  };
  const auto put = [&](int row, const float (&x)[2][4], bool both) {
    float* to = s.row(0, row + lane / 4) + warp * 16 + lane % 4 * 2;
#pragma unroll
    for (int tile = 0; tile < 2; ++tile) {
      *reinterpret_cast<float2*>(to + tile * 8) = make_float2(x[tile][0], x[tile][1]);
      if (both)
        *reinterpret_cast<float2*>(to + 8 * GradientShared<kDim>::kWorkRow + tile * 8) =
            make_float2(x[tile][2], x[tile][3]);
    }
  };
  uint32_t b[4], a[4];
  load_b_trans<kDim>(b, ptx::shared_address(s.end16), 0, warp, lane);
  float ends[2][4] = {};
#pragma unroll 1
  for (int which = 0; which < (kDelta ? 2 : 1); ++which) {
    float x[2][4] = {};
    uint32_t rows[4];
    load_b_trans<kDim>(rows, ptx::shared_address(which == 0 ? s.q16 : s.k16), 0, warp, lane);
#pragma unroll
    for (int part = 0; part < kParts; ++part) {
      const uint32_t matrix = which == 0 ? dp[part] : da[part];
      ptx::ldmatrix_x4(a, square(matrix, kBlock + (m & 1) * 8 + lower, (m >> 1) * 8));
      multiply(x, a, b[0], b[1], b[2], b[3]);
      ptx::ldmatrix_x4_trans(a, square(matrix, kBlock + (m >> 1) * 8 + lower, (m & 1) * 8));
      multiply(ends, a, rows[0], rows[1], rows[2], rows[3]);
    }
    put(which == 0 ? kOfQ16 : kOfK16, x, true);
  }
  put(kOfEnd16, ends, true);
#pragma unroll 1
  for (int block = 0; block < 2; ++block) {
    const int first = block * kBlock, at = kOf8 + block * kRows8;
    uint32_t rows[4];
    float x[2][4] = {}, y[2][4] = {};
    ptx::ldmatrix_x4_trans(
        b, ptx::shared_address(s.end8[block]) + swizzled<kDim>(lower, warp * 2 + (m & 1)));
    load_b_trans<kDim>(rows, ptx::shared_address(s.rows8[block]), 0, warp, lane);
#pragma unroll
    for (int part = 0; part < kParts; ++part) {
      // Upper rows of q and k stacked, by 8 keys: half of the inner dimension is empty.
      const uint32_t stacked = kDelta && (m & 1) != 0 ? da[part] : dp[part];
      ptx::ldmatrix_x4(a, square(stacked, first + kSub + lower, first));
      a[2] = a[3] = 0;
      multiply(x, a, b[0], 0, b[1], 0);
      // 8 keys by those 16 rows: half of the outer dimension is empty.
      const uint32_t beside = kDelta && (m >> 1) != 0 ? da[part] : dp[part];
      ptx::ldmatrix_x4_trans(a, square(beside, first + kSub + lower, first));
      a[1] = a[3] = 0;
      if (!kDelta) a[2] = 0;
      multiply(y, a, rows[0], rows[1], rows[2], rows[3]);
    }
    put(at, x, true);
    put(at + kBlock, y, false);
  }
}

// From the rows of log decays' gradients to those of g as the caller has it, and sums for dt_bias
// and A_log. A warp takes every kDim / 16th row.
template <int kDim>
__device__ __forceinline__ void finish_gates(const ChunkGradientParams& g,
                                             ChannelGradientShared<kDim>& s, int warp, int lane) {
  constexpr int kPer = kDim / 32, kWarps = kDim / 16;
  const ChunkParams& p = g.chunk;
  const Problem& problem = p.problem;
  const int channel = lane * kPer, valid = p.dim_k - channel;
  const float factor = gate_factor(problem, p.args, s.place.hv);
  float bias[kPer], by_bias[kPer], by_factor = 0.0f;
#pragma unroll
  for (int e = 0; e < kPer; ++e) {
    by_bias[e] = 0.0f;
    bias[e] = e < valid ? gradient::bias_of(problem, p.args, s.place.hv, channel + e) : 0.0f;
  }
#pragma unroll 1
  for (int row = warp; row < s.place.rows; row += kWarps) {
    const int64_t t = s.place.begin + row;
    float x[kPer];
    load_lane<kPer>(s.row(2, row) + channel, x);
    if (problem.gate_form != GateForm::given) {
      float raw[kPer];
      load_lane<kPer>(problem.g.type, p.args.g, problem.g.at(s.place.batch, t, s.place.hv, channel),
                      valid, p.vectors, raw);
#pragma unroll
      for (int e = 0; e < kPer; ++e) {
        const gradient::GateGradient got =
            gradient::gate_gradient<false>(problem, x[e], raw[e] + bias[e], factor);
        x[e] = got.g;
        by_bias[e] += got.g, by_factor += e < valid ? got.A_log : 0.0f;
      }
    }
    if (problem.dg.present())
      store_lane<kPer>(problem.dg.type, p.args.dg,
                       problem.dg.at(s.place.batch, t, s.place.hv, channel), valid, g.dg_vectors,
                       x);
  }
  if (g.gate_sums == nullptr) return;
  float* sums = s.scratch();
#pragma unroll
  for (int e = 0; e < kPer; ++e) sums[warp * kDim + channel + e] = by_bias[e];
  by_factor = gradient::warp_sum(by_factor);
  if (lane == 0) s.factor[warp] = by_factor;
  ptx::sync_cta();
  float* to = g.gate_sums + s.index * (g.gate_dim + 1);
  const int thread = warp * 32 + lane;
  if (thread <= g.gate_dim) {
    float sum = 0.0f;
#pragma unroll
    for (int w = 0; w < kWarps; ++w)
      sum += thread < g.gate_dim ? sums[w * kDim + thread] : s.factor[w];
    to[thread] = sum;
  }
}

// Where a lane's two channels of a sub-block lie. Each step asks anew, or what follows from it
// stays in registers from the first to the last.
struct Spot {
  int thread, sub, channel;
};
__device__ __forceinline__ Spot find_spot() {
  const int thread = static_cast<int>(ptx::thread_of_cta());
  return {thread, thread / 32 % 4, thread / 128 * 64 + thread % 32 * 2};
}

template <int kDim>
__device__ __forceinline__ void load_rows_again(const ChunkGradientParams& g, const Spot& at,
                                                ChannelGradientShared<kDim>& s, SubBlock& x) {
  const ChunkParams& p = g.chunk;
  const auto load = [&](const TokenView& view, const void* data, uint32_t (&rows)[kSub]) {
    load_pairs(view, data, p, s.place, at.sub, at.channel, g.qk_pairs, s.spare() + at.thread,
               gradient_threads(kDim), rows);
  };
  load(p.problem.q, p.args.q, x.q);
  load(p.problem.k, p.args.k, x.k);
}

// Rows, decays and their products over the sub-block.
template <int kDim, bool kDelta>
__device__ __forceinline__ void begin_rows(const ChunkGradientParams& g,
                                           ChannelGradientShared<kDim>& s, SubBlock& x) {
  const Spot at = find_spot();
  load_row_decays<kDim>(g.chunk, s.place, at.sub, at.channel,
                        s.scratch() + at.sub * kSub * kDim + at.channel, x.d);
  load_rows_again(g, at, s, x);
#pragma unroll
  for (int e = 0; e < 2; ++e) {
    float total = 1.0f;
#pragma unroll
    for (int r = 0; r < kSub; ++r) {
      total *= x.d[r][e];
      x.dq[r][e] = x.dk[r][e] = x.dlog[r][e] = 0.0f;
    }
    s.total[at.sub][at.channel + e] = total;
  }
  narrow_pairs<kDim, kDelta>(s, at.thread);
}

// What comes through the states, and the operands of the products between halves.
template <int kDim, bool kDelta>
__device__ __forceinline__ void add_states(ChannelGradientShared<kDim>& s, SubBlock& x) {
  constexpr int kStride = ChannelGradientShared<kDim>::kWorkRow;
  const Spot at = find_spot();
  const int sub = at.sub, channel = at.channel;
  const Around<2> around = around_sub_block<kDim, 2>(s.total, sub, channel);
  store_operands<kDim, kDelta>(x, around, sub, channel, s);
  ptx::sync_warp();
  float sum[2];
  add_prefix<kDelta>(x, s.row(0, sub * kSub) + channel, s.row(1, sub * kSub) + channel, kStride,
                     around.before32, sum);
  if (sub > 0) s.entering[sub - 1][channel] = sum[0], s.entering[sub - 1][channel + 1] = sum[1];
  ptx::sync_warp();
  add_suffix(x, s.row(2, sub * kSub) + channel, kStride, around.after32, sum);
  if (sub < 3) s.leaving[sub][channel] = sum[0], s.leaving[sub][channel + 1] = sum[1];
}

// The products of the halves of 8 rows, in places `first` of this lane alone, and of 16, in
// `second`: a lower half's keys run to its end, an upper half's rows from its start.
template <int kDim, bool kDelta>
__device__ __forceinline__ void add_halves(const Spot& at, const float* first, const float* second,
                                           ChannelGradientShared<kDim>& s, SubBlock& x) {
  constexpr int kStride = ChannelGradientShared<kDim>::kWorkRow;
  const int sub = at.sub, channel = at.channel;
  float sum[2];
#pragma unroll 1
  for (int level = 8; level <= 16; level *= 2) {
    const bool upper = level == 8 ? sub % 2 != 0 : sub >= 2;
    // Between the sub-block and the middle lies another, or nothing.
    float by[2];
#pragma unroll
    for (int e = 0; e < 2; ++e)
      by[e] = level == 16 && (sub == 0 || sub == 3) ? s.total[sub == 0 ? 1 : 2][channel + e] : 1.0f;
    const float* products = level == 8 ? first : second;
    if (upper)
      add_prefix<kDelta>(x, products, products + (level == 8 ? kSub : kBlock) * kStride, kStride,
                         by, sum);
    else
      add_suffix(x, products, kStride, by, sum);
  }
  if (sub == 3) s.entering16[channel] = sum[0], s.entering16[channel + 1] = sum[1];
  if (sub == 0) s.leaving16[channel] = sum[0], s.leaving16[channel + 1] = sum[1];
}

// Both channels' pairs in turn, and all gradients as rows of shared memory; between barriers.
template <int kDim, bool kDelta>
__device__ __forceinline__ void end_rows(const ChunkGradientParams& g,
                                         ChannelGradientShared<kDim>& s, SubBlock& x) {
  constexpr int kStride = ChannelGradientShared<kDim>::kWorkRow;
  const Spot at = find_spot();
  const int sub = at.sub, channel = at.channel;
  load_rows_again(g, at, s, x);
  const int at8 = kOf8 + sub / 2 * kRows8, row16 = sub % 2 * kSub;
  float* const first = s.row(0, sub % 2 != 0 ? at8 : at8 + kBlock) + channel;
  float* const second = s.row(0, sub >= 2 ? kOfQ16 + row16 : kOfEnd16 + row16) + channel;
  add_halves<kDim, kDelta>(at, first, second, s, x);
  Column column, other;
#pragma unroll
  for (int r = 0; r < kSub; ++r) {
    column.dq[r] = x.dq[r][0], column.dk[r] = x.dk[r][0], column.dlog[r] = x.dlog[r][0];
    other.dq[r] = x.dq[r][1], other.dk[r] = x.dk[r][1], other.dlog[r] = x.dlog[r][1];
  }
  exchange(other, first, second, kStride);  // what comes back is of no use
  ptx::sync_warp();
#pragma unroll 1
  for (int e = 0; e < 2; ++e) {
    add_pairs<kDim, kDelta>(column, x, e, sub, s);
    exchange(column, first, second, kStride);
  }
  other = column;
  exchange(other, first, second, kStride);
  ptx::sync_cta();  // all products have been read

  // Paths over the whole sub-block: through the chunk, into later rows, from earlier keys.
  float over[2];
#pragma unroll
  for (int e = 0; e < 2; ++e) {
    const int c = channel + e;
    over[e] = s.total[0][c] * s.total[1][c] * (s.total[2][c] * s.total[3][c]) * s.through[c];
#pragma unroll
    for (int i = 0; i < 3; ++i) {
      if (i + 1 > sub) over[e] += s.entering[i][c];
      if (i < sub) over[e] += s.leaving[i][c];
    }
    if (sub == 2) over[e] += s.entering16[c];
    if (sub == 1) over[e] += s.leaving16[c];
  }
#pragma unroll
  for (int r = 0; r < kSub; ++r) {
    const auto put = [&](int array, float x0, float x1) {
      *reinterpret_cast<float2*>(s.row(array, sub * kSub + r) + channel) = make_float2(x0, x1);
    };
    put(0, column.dq[r], other.dq[r]);
    put(1, column.dk[r], other.dk[r]);
    put(2, column.dlog[r] + over[0], other.dlog[r] + over[1]);
  }
}

// One value head of the CTA's group.
template <int kDim, bool kDelta>
__device__ __forceinline__ void channel_gradients(const ChunkGradientParams& g, int member,
                                                  ChannelGradientShared<kDim>& s) {
  constexpr GradientRecord layout{kDim, true, kDelta};
  multiply_chunk<kDim, kDelta>(g, layout, s, static_cast<int>(ptx::thread_of_cta()));
  SubBlock x;
  begin_rows<kDim, kDelta>(g, s, x);
  ptx::sync_cta();
  add_states<kDim, kDelta>(s, x);
  ptx::sync_cta();
  {
    const int thread = static_cast<int>(ptx::thread_of_cta());
    multiply_halves<kDim, kDelta>(s, thread / 32, thread % 32);
  }
  ptx::sync_cta();
  end_rows<kDim, kDelta>(g, s, x);
  ptx::sync_cta();
  const int thread = static_cast<int>(ptx::thread_of_cta());
  finish_rows<kDim>(g, member, s, thread / 32, thread % 32);
  if (gradient::wants_gate(g.chunk.problem)) finish_gates<kDim>(g, s, thread / 32, thread % 32);
}

}  // namespace chunk::gradients

// grid: chunk slots * H, the head fastest; block: gradient_threads().
template <int kDim, bool kDelta>
__global__ void __launch_bounds__(gradient_threads(kDim), chunk::gradients::gradient_ctas<kDim>())
    chunk_gradient_channel_portable(const __grid_constant__ ChunkGradientParams g) {
  auto& s =
      *reinterpret_cast<chunk::gradients::ChannelGradientShared<kDim>*>(ptx::dynamic_shared());
  const int group = static_cast<int>(g.chunk.group.divisor);
#pragma unroll 1
  for (int member = 0; member < group; ++member) {
    if (chunk::gradients::enter_place(g, member, s, static_cast<int>(ptx::thread_of_cta())))
      chunk::gradients::channel_gradients<kDim, kDelta>(g, member, s);
  }
}

}  // namespace linattn::cuda
