// Preparation: what of a chunk does not depend on the state. T = (I + A)^-1 diag(beta) with
// A = tril_-1(beta K~ K^T), P = tril(Q~ K^T), and the factors of every token. A warp makes the
// record of one chunk of one value head alone, so nothing waits for another warp.
#pragma once

#include "cuda/portable/chunk_place.cuh"
#include "cuda/ptx/launch.cuh"
#include "cuda/ptx/math.cuh"
#include "cuda/ptx/mma.cuh"
#include "cuda/ptx/special.cuh"
#include "cuda/ptx/warp.cuh"
#include "cuda/sm90/prepare.square.cuh"
#include "cuda/sm90/scan.load.cuh"
#include "cuda/sm90/scan.params.h"

namespace linattn::cuda {
namespace sm90 {

using chunk::kLog2E;
using chunk::kLowestLogDecay;
using chunk::Place;

// Base-2 log decay of a token.
__device__ __forceinline__ float token_gate(const ScanParams& p, const Place& place, int64_t t) {
  const Problem& problem = p.problem;
  float g = 0.0f;
  if (problem.gate == Gate::head_constant) {
    g = static_cast<const float*>(p.args.g_gamma)[place.hv * problem.g_gamma.h];
  } else if (problem.gate == Gate::head) {
    g = load_element(problem.g.type, p.args.g, problem.g.at(place.batch, t, place.hv));
    if (problem.gate_form != GateForm::given) {
      const float bias =
          problem.dt_bias.present()
              ? load_element(problem.dt_bias.type, p.args.dt_bias, place.hv * problem.dt_bias.h)
              : 0.0f;
      g = log_decay(problem, g, bias, gate_factor(problem, p.args, place.hv));
    }
  }
  return fmaxf(g, kLowestLogDecay) * kLog2E;
}

// Products of rows with keys as accumulators of tiles of 16 rows by 8 columns, lower blocks only:
// rows 0..15 have tiles 0, 1, rows 16..31 tiles 2 to 5, of columns column_of(tile)...
inline constexpr int kTiles = 6;
__device__ __forceinline__ constexpr int row_of(int tile) { return tile < 2 ? 0 : 16; }
__device__ __forceinline__ constexpr int column_of(int tile) {
  return 8 * (tile < 2 ? tile : tile - 2);
}
using Products = float[kTiles][4];

// kk = K K^T, qk = Q K^T of a [K; Q] tile; qq: the diagonal blocks of Q Q^T.
template <bool kBf16, bool kDelta>
__device__ __forceinline__ void multiply_rows(Products& kk, Products& qk, float (&qq)[4][4],
                                              uint32_t tile, bool with_qq, int lane) {
  // Rows of an A operand are tiles' rows, of a B operand their columns. A step is two units of 16
  // bytes further: in a panel the swizzle makes that an exclusive or.
  const int m = lane / 8, row = lane % 8;
  const uint32_t of_a = tile::swizzled((m & 1) * 8 + row, m >> 1);
  const uint32_t of_b = tile::swizzled((m >> 1) * 8 + row, m & 1);
  const auto load = [&](uint32_t (&x)[4], int first, int step, bool b_operand) {
    ptx::ldmatrix_x4(x, tile + ((b_operand ? of_b : of_a) ^ (step % 4 << 5)) +
                            (step / 4 * RowsTile::kPanelBytes + first * tile::kSwizzleBytes));
  };
#pragma unroll
  for (int step = 0; step < kDim / 16; ++step) {
    uint32_t keys[2][4], rows[4];
    load(keys[0], 0, step, true), load(keys[1], 16, step, true);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      if constexpr (kDelta) {
        load(rows, 16 * half, step, false);
#pragma unroll
        for (int tile = half == 0 ? 0 : 2; tile < (half == 0 ? 2 : 6); ++tile) {
          const uint32_t (&b)[4] = keys[column_of(tile) / 16];
          const int e = column_of(tile) % 16 / 8 * 2;
          ptx::mma_m16n8k16<kBf16>(kk[tile], rows, b[e], b[e + 1]);
        }
      }
      load(rows, kChunk + 16 * half, step, false);
#pragma unroll
      for (int tile = half == 0 ? 0 : 2; tile < (half == 0 ? 2 : 6); ++tile) {
        const uint32_t (&b)[4] = keys[column_of(tile) / 16];
        const int e = column_of(tile) % 16 / 8 * 2;
        ptx::mma_m16n8k16<kBf16>(qk[tile], rows, b[e], b[e + 1]);
      }
      if (with_qq) {
        uint32_t queries[4];
        load(queries, kChunk + 16 * half, step, true);
        ptx::mma_m16n8k16<kBf16>(qq[2 * half], rows, queries[0], queries[1]);
        ptx::mma_m16n8k16<kBf16>(qq[2 * half + 1], rows, queries[2], queries[3]);
      }
    }
  }
}

// The diagonal of two neighbouring tiles on it: rows row0 + l/4 and + 8.
__device__ __forceinline__ void store_diagonal(float* to, const float (&left)[4],
                                               const float (&right)[4], int lane) {
  const int g = lane / 4;
  if (lane % 4 != g / 2) return;
  to[g] = g % 2 == 0 ? left[0] : left[1];
  to[g + 8] = g % 2 == 0 ? right[2] : right[3];
}

// A = beta K~ K^T below the diagonal, P = Q~ K^T on and below it, in place of the products.
template <bool kDelta>
__device__ __forceinline__ void decay_products(Products& kk, Products& qk, const Tokens& s,
                                               int lane) {
  const int g = lane / 4, t = lane % 4;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    float whole[2], part[2], of_a[2], of_p[2];
#pragma unroll
    for (int side = 0; side < 2; ++side) {
      const int i = 16 * half + 8 * side + g;
      whole[side] = s.g_whole[i], part[side] = s.g_part[i];
      of_a[side] = kDelta ? s.of_a[i] : 0.0f;
      of_p[side] = (kDelta ? kCut * kCut : kCut) * s.of_p[i];
    }
#pragma unroll
    for (int tile = half == 0 ? 0 : 2; tile < (half == 0 ? 2 : 6); ++tile) {
      const int j = column_of(tile) + 2 * t;
      const bool masked = column_of(tile) >= row_of(tile);  // on the diagonal
      const float2 wholes = *reinterpret_cast<const float2*>(s.g_whole + j);
      const float2 parts = *reinterpret_cast<const float2*>(s.g_part + j);
      const float2 keys = *reinterpret_cast<const float2*>(s.norm_k + j);
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const int side = e / 2, i = 16 * half + 8 * side + g, column = j + e % 2;
        const float decay = (e % 2 == 0 ? keys.x : keys.y) *
                            ptx::exp2((whole[side] - (e % 2 == 0 ? wholes.x : wholes.y)) +
                                      (part[side] - (e % 2 == 0 ? parts.x : parts.y)));
        if constexpr (kDelta) {
          const float a = of_a[side] * decay * kk[tile][e];
          kk[tile][e] = !masked || column < i ? a : 0.0f;
        }
        const float x = of_p[side] * decay * qk[tile][e];
        qk[tile][e] = !masked || column <= i ? x : 0.0f;
      }
    }
  }
}

__device__ __forceinline__ void store_a(char* square, const Products& a, int lane) {
#pragma unroll
  for (int tile = 0; tile < kTiles; ++tile)
#pragma unroll
    for (int side = 0; side < 2; ++side)
      *row_pair(square, row_of(tile), column_of(tile), lane, 0, side) =
          make_float2(a[tile][2 * side], a[tile][2 * side + 1]);
  __syncwarp();
}

// The block above the diagonal is zero from the start.
__device__ __forceinline__ void store_p(char* square, const Products& p, int lane) {
  const int g = lane / 4, t = lane % 4;
  const int of_lane = SquareTile::at(g, square_column(2 * t));
#pragma unroll
  for (int tile = 0; tile < kTiles; ++tile)
#pragma unroll
    for (int e = 0; e < 4; ++e)
      *reinterpret_cast<float*>(square + (of_lane ^ unit_bits(column_of(tile) / 4 + (e & 1))) +
                                (row_of(tile) + (e & 2) * 4) * tile::kSwizzleBytes) = p[tile][e];
}

// Gates and norms of the lane's token into the scratch. Whole parts and rests of the gates are
// summed apart, so that a difference keeps its digits behind a token that decays by exp(-100).
template <bool kDelta>
__device__ __forceinline__ void finish_token(Tokens& s, float g, float beta, bool qk_norm,
                                             float scale, int lane) {
  float whole = rintf(g), part = g - whole;
#pragma unroll
  for (int step = 1; step < 32; step *= 2) {
    const float left_whole = __shfl_up_sync(ptx::kAllLanes, whole, step);
    const float left_part = __shfl_up_sync(ptx::kAllLanes, part, step);
    if (lane >= step) whole += left_whole, part += left_part;
  }
  __syncwarp();
  const float squares = kDelta ? s.norm_k[lane] : 0.0f;
  const float norm_k = qk_norm ? ptx::inverse_root_approx(squares + 1e-6f) : 1.0f;
  const float norm_q = qk_norm ? ptx::inverse_root_approx(s.of_p[lane] + 1e-6f) : 1.0f;
  // |I - beta k k^T| of this token, then of all.
  float growth = fmaxf(1.0f, fabsf(1.0f - beta * squares * norm_k * norm_k));
#pragma unroll
  for (int bit = 16; bit >= 1; bit >>= 1) growth *= ptx::shuffle_xor(growth, bit);
  s.g_whole[lane] = whole, s.g_part[lane] = part;
  s.norm_k[lane] = norm_k, s.beta[lane] = beta;
  s.of_a[lane] = beta * norm_k, s.of_p[lane] = scale * norm_q;
  if (lane == 0) s.growth = growth;
  __syncwarp();
}

__device__ __forceinline__ void store_factors(Record& record, const Tokens& s, int lane) {
  const float whole = s.g_whole[lane], part = s.g_part[lane];
  const float whole_end = s.g_whole[kChunk - 1], part_end = s.g_part[kChunk - 1];
  const float from_start = ptx::exp2(whole + part);
  record.read_k[lane] = s.norm_k[lane] * from_start;
  record.read_q[lane] = s.of_p[lane] * from_start;
  record.write_k[lane] = s.norm_k[lane] * ptx::exp2((whole_end - whole) + (part_end - part));
  if (lane == 0) {
    record.decay = ptx::exp2(whole_end + part_end);
    record.bound = record.decay * s.growth;
  }
}

// The square's bytes as they lie, to global memory.
__device__ __forceinline__ void copy_square(float* to, const float* square, int lane) {
  __syncwarp();
#pragma unroll
  for (int i = 0; i < kChunk * kChunk / 4 / 32; ++i)
    reinterpret_cast<float4*>(to)[i * 32 + lane] =
        reinterpret_cast<const float4*>(square)[i * 32 + lane];
  __syncwarp();
}

// `finish` ends when the rows are in the tile.
template <bool kBf16, bool kDelta, class Finish>
__device__ __forceinline__ void make_record(const ScanParams& p, const Place& place, uint32_t tile,
                                            const Finish& finish, Tokens& s, Record& record,
                                            int lane) {
  const Problem& problem = p.problem;
  const int64_t t = place.begin + lane;
  const bool exists = lane < place.rows;
  const float g = exists ? token_gate(p, place, t) : 0.0f;
  const float beta = kDelta && exists ? load_beta(problem, p.args, place.batch, t, place.hv) : 0.0f;
  char* square = reinterpret_cast<char*>(s.square);
  finish();
  Products kk = {}, qk = {};
  {
    float qq[4][4] = {};
    multiply_rows<kBf16, kDelta>(kk, qk, qq, tile, problem.qk_norm, lane);
    if constexpr (kDelta) {
      store_diagonal(s.norm_k, kk[0], kk[1], lane);
      store_diagonal(s.norm_k + 16, kk[4], kk[5], lane);
    }
    if (problem.qk_norm) {
      store_diagonal(s.of_p, qq[0], qq[1], lane);
      store_diagonal(s.of_p + 16, qq[2], qq[3], lane);
    }
  }
  finish_token<kDelta>(s, g, beta, problem.qk_norm, p.scale, lane);
  decay_products<kDelta>(kk, qk, s, lane);
  if constexpr (kDelta) {
    store_a(square, kk, lane);
    const Inverse x = invert(square, lane);
    __syncwarp();
    store_t(square, x, lane, [&](int column) { return s.beta[column]; });
    copy_square(record.t, s.square, lane);
  }
  zero_upper_block(square, lane);
  store_p(square, qk, lane);
  copy_square(record.p, s.square, lane);
  store_factors(record, s, lane);
}

// k and q of the chunk, by the copy engine where there are maps; rows that do not exist become
// zero.
__device__ __forceinline__ void start_rows(const ScanParams& p, const Place& place, int64_t h,
                                           char* tile, uint32_t landed) {
  ptx::init_barrier(landed, 1);
  ptx::fence_barrier_init();
  if (!p.vectors) return ptx::arrive(landed);
  ptx::expect_bytes(landed, RowsTile::kTileBytes);
  const uint32_t to = ptx::shared_address(tile);
#pragma unroll
  for (int half = 0; half < 2; ++half)
#pragma unroll
    for (int panel = 0; panel < 2; ++panel)
      ptx::copy_box(to + half * kChunk * tile::kSwizzleBytes + panel * RowsTile::kPanelBytes,
                    half == 0 ? p.k_map : p.q_map, panel * RowsTile::kPanelColumns,
                    static_cast<int>(h), static_cast<int>(place.begin),
                    static_cast<int>(place.batch), landed);
}

__device__ __forceinline__ void finish_rows(const ScanParams& p, const Place& place, int64_t h,
                                            char* tile, uint32_t landed, int thread, int threads) {
  ptx::wait(landed, 0);
  if (p.vectors && place.rows == kChunk) return;
  const Problem& problem = p.problem;
  const int lane = thread % 32;
  for (int half = thread / 32; half < 2; half += threads / 32) {
    const TokenView& view = half == 0 ? problem.k : problem.q;
    if (!p.vectors)
      copy_rows<RowsTile>(half == 0 ? p.args.k : p.args.q, view.at(place.batch, place.begin, h),
                          view.t, place.rows, tile, half * kChunk, lane);
    zero_rows<RowsTile>(tile, half * kChunk, place.rows, lane);
  }
  __syncthreads();
}

}  // namespace sm90

// grid: chunk slots * H * parts of the value heads of one q/k head, the last fastest; a warp a
// value head.
template <bool kBf16, bool kDelta>
__global__ void __launch_bounds__(sm90::kMostWarps * 32, 4)
    chunk_prepare_sm90(const __grid_constant__ sm90::ScanParams p) {
  using namespace sm90;
  char* unaligned = ptx::dynamic_shared();
  char* shared = unaligned + (tile::kAlignment - ptx::shared_address(unaligned)) % tile::kAlignment;
  // Without a sign for ptxas: a sixth of the instructions.
  const int thread = static_cast<int>(threadIdx.x % (kMostWarps * 32));
  const int threads = static_cast<int>(blockDim.x);
  const uint32_t first_head = blockIdx.x * (threads / 32);  // of all slots' value heads
  const uint32_t slot = chunk::divide(first_head, p.heads_v);
  const int64_t hv = first_head - slot * p.heads_v.divisor + thread / 32;
  const int64_t h = chunk::divide(static_cast<uint32_t>(hv), p.group);
  const Place place = chunk::find_place(p, slot, hv);
  if (p.cuts.work != nullptr && blockIdx.x == 0 && thread < kSections) p.cuts.counts[thread] = 0;
  if (place.rows == 0) return;
  const uint32_t landed = ptx::shared_address(shared) + prepare_barrier_at(threads / 32);
  if (thread == 0) start_rows(p, place, h, shared, landed);
  ptx::allow_next_grid();
  __syncthreads();
  Tokens& s = reinterpret_cast<Tokens*>(shared + RowsTile::kTileBytes)[thread / 32];
  Record& record = static_cast<Record*>(p.records)[slot * p.heads_v.divisor + hv];
  make_record<kBf16, kDelta>(
      p, place, ptx::shared_address(shared),
      [&] { finish_rows(p, place, h, shared, landed, thread, threads); }, s, record, thread % 32);
  if (p.cuts.work != nullptr && thread % 32 == 0)
    p.cuts.bounds[hv * p.cuts.slots + slot] = record.bound;
}

}  // namespace linattn::cuda
