// Preparation with a gate a channel: q, k, g of a chunk in shared memory, and what of them is a
// number a token. A warp has eight tokens, a lane four channels of each.
#pragma once

#include "cuda/portable/chunk_place.cuh"
#include "cuda/ptx/barrier.cuh"
#include "cuda/ptx/copy.cuh"
#include "cuda/ptx/copy_engine.cuh"
#include "cuda/ptx/math.cuh"
#include "cuda/ptx/mma.cuh"
#include "cuda/ptx/special.cuh"
#include "cuda/ptx/warp.cuh"
#include "cuda/sm90/channel.shared.h"
#include "cuda/sm90/scan.params.h"

namespace linattn::cuda::sm90 {

using chunk::kLog2E;
using chunk::Place;

inline constexpr int kRows = 8;   // tokens of a warp
inline constexpr int kWidth = 4;  // channels of a lane
using Gates = float[kRows][kWidth];

// Where g lies in shared memory: panels of 128 bytes a row.
template <class T>
using GateTile = tile::Tile<kChunk, kDim, static_cast<int>(sizeof(T))>;

__device__ __forceinline__ uint32_t load_bits(Type type, const void* data, int64_t offset) {
  return type == Type::f32 ? static_cast<const uint32_t*>(data)[offset]
                           : uint32_t{static_cast<const uint16_t*>(data)[offset]};
}

__device__ __forceinline__ float value_of(Type type, uint32_t bits) {
  float low, high;
  if (type == Type::f16)
    ptx::unpack_f16(bits, low, high);
  else
    ptx::unpack_bf16(bits, low, high);
  return type == Type::f32 ? __uint_as_float(bits) : low;
}

// A_log, dt_bias of the lane's channels and beta of the thread's token as they lie in memory: all
// are under way before the first is waited for.
struct RawSide {
  float log_factor = 0.0f;
  uint32_t bias[kWidth] = {}, beta = 0;

  __device__ __forceinline__ RawSide(const ScanParams& p, const Place& place, bool with_beta,
                                     int thread, int lane) {
    const Problem& problem = p.problem;
    if (problem.gate_form != GateForm::given) {
      if (problem.A_log.present())
        log_factor = static_cast<const float*>(p.args.A_log)[place.hv * problem.A_log.h];
      const HeadView& view = problem.dt_bias;
      if (view.present()) {
        const int64_t at = place.hv * view.h + lane * kWidth * view.k;
#pragma unroll
        for (int e = 0; e < kWidth; ++e)
          bias[e] = load_bits(view.type, p.args.dt_bias, at + e * view.k);
      }
    }
    if (with_beta && problem.beta.present() && thread < place.rows)
      beta = load_bits(problem.beta.type, p.args.beta,
                       problem.beta.at(place.batch, place.begin + thread, place.hv));
  }
};

// What find_log_decays (anchored) and find_decays take besides g.
struct GateSide {
  float factor = 1.0f, bias[kWidth] = {};

  __device__ __forceinline__ GateSide(const Problem& problem, const RawSide& raw, bool anchored) {
    if (problem.gate_form == GateForm::given) return;
    if (problem.A_log.present()) factor = expf(raw.log_factor);
    if (anchored) factor *= -kLog2E;
    if (!problem.dt_bias.present()) return;
#pragma unroll
    for (int e = 0; e < kWidth; ++e)
      bias[e] = (anchored ? factor : 1.0f) * value_of(problem.dt_bias.type, raw.bias[e]);
  }
};

// Rows of q, k and g of the chunk by the copy engine.
__device__ __forceinline__ void copy_inputs(const ScanParams& p, const Place& place,
                                            ChannelScratch& s, uint32_t landed) {
  const int token = static_cast<int>(place.begin), batch = static_cast<int>(place.batch);
  const int h = static_cast<int>(place.h), hv = static_cast<int>(place.hv);
  const int panels = p.problem.g.type == Type::f32 ? 4 : 2;
  ptx::expect_bytes(landed, RowsTile::kTileBytes + panels * KeysTile::kPanelBytes);
  const uint32_t rows = ptx::shared_address(s.record.rows);
  const uint32_t gates = ptx::shared_address(s.gates());
#pragma unroll
  for (int panel = 0; panel < 2; ++panel) {
    const uint32_t to = rows + panel * RowsTile::kPanelBytes;
    ptx::copy_box(to, p.k_map, panel * 64, h, token, batch, landed);
    ptx::copy_box(to + KeysTile::kPanelBytes, p.q_map, panel * 64, h, token, batch, landed);
  }
  for (int panel = 0; panel < panels; ++panel)
    ptx::copy_box(gates + panel * KeysTile::kPanelBytes, p.g_map, panel * 64, hv, token, batch,
                  landed);
}

// The same where no tensor map describes them, element by element and by all threads.
__device__ __forceinline__ void copy_input_elements(const ScanParams& p, const Place& place,
                                                    ChannelScratch& s, int thread) {
  const Problem& problem = p.problem;
  const auto* k =
      static_cast<const uint16_t*>(p.args.k) + problem.k.at(place.batch, place.begin, place.h);
  const auto* q =
      static_cast<const uint16_t*>(p.args.q) + problem.q.at(place.batch, place.begin, place.h);
  const int64_t g = problem.g.at(place.batch, place.begin, place.hv);
#pragma unroll 1
  for (int i = thread; i < place.rows * kDim; i += kPrepareChannelThreads) {
    const int row = i / kDim, channel = i % kDim;
    const auto at = [&](int in_tile) {
      return reinterpret_cast<uint16_t*>(s.record.rows + RowsTile::at(in_tile, channel));
    };
    *at(row) = k[row * problem.k.t + channel];
    *at(kChunk + row) = q[row * problem.q.t + channel];
    const int64_t from = g + row * problem.g.t + channel;
    if (problem.g.type == Type::f32)
      *reinterpret_cast<float*>(s.gates() + GateTile<float>::at(row, channel)) =
          static_cast<const float*>(p.args.g)[from];
    else
      *reinterpret_cast<uint16_t*>(s.gates() + GateTile<uint16_t>::at(row, channel)) =
          static_cast<const uint16_t*>(p.args.g)[from];
  }
}

// Zeros in the warp's rows that no token owns.
__device__ __forceinline__ void zero_missing(const ScanParams& p, ChannelScratch& s, int first,
                                             int rows, int lane) {
  const bool wide = p.problem.g.type == Type::f32;
  const uint4 zero = make_uint4(0, 0, 0, 0);
  for (int row = first > rows ? first : rows; row < first + kRows; ++row) {
    char* to = s.record.rows + RowsTile::at((lane & 16) * 2 + row, lane % 16 * 8);
    *reinterpret_cast<uint4*>(to) = zero;
    if (wide)
      *reinterpret_cast<uint4*>(s.gates() + GateTile<float>::at(row, lane * 4)) = zero;
    else if (lane < 16)
      *reinterpret_cast<uint4*>(s.gates() + GateTile<uint16_t>::at(row, lane * 8)) = zero;
  }
  ptx::sync_warp();
}

// The warp's rows of k and q from fp16, for which the anchored frame has no room.
__device__ __forceinline__ void narrow_rows(ChannelScratch& s, int first, int lane) {
#pragma unroll 1
  for (int r = 0; r < kRows; ++r) {
    auto* at = reinterpret_cast<uint4*>(s.record.rows +
                                        RowsTile::at((lane & 16) * 2 + first + r, lane % 16 * 8));
    uint4 x = *at;
    for (uint32_t* pair : {&x.x, &x.y, &x.z, &x.w}) {
      float low, high;
      ptx::unpack_f16(*pair, low, high);
      *pair = ptx::pack_bf16(low, high);
    }
    *at = x;
  }
  ptx::sync_warp();
}

// |k|^2, |q|^2 and q k of the warp's tokens: diagonals of products of their rows.
__device__ __forceinline__ void square_rows(ChannelScratch& s, int first, int lane) {
  // A tile of an A operand with keys above queries is one of their B operands, register by
  // register.
  const int in_tile = first + (lane & 8) / 8 * kChunk + lane % 8;
  const uint32_t rows = ptx::shared_address(s.record.rows);
  float of_k[4] = {}, of_q[4] = {};
#pragma unroll
  for (int step = 0; step < kDim / 16; ++step) {
    uint32_t x[4];
    ptx::ldmatrix_x4(x, rows + RowsTile::at(in_tile, step * 16 + lane / 16 * 8));
    ptx::mma_m16n8k16<true>(of_k, x, x[0], x[2]);
    ptx::mma_m16n8k16<true>(of_q, x, x[1], x[3]);
  }
  const int row = lane / 4;
  if (lane % 4 != row / 2) return;
  s.squares_k[first + row] = row % 2 == 0 ? of_k[0] : of_k[1];
  s.squares_q[first + row] = row % 2 == 0 ? of_q[2] : of_q[3];
  s.products[first + row] = row % 2 == 0 ? of_k[2] : of_k[3];
}

// What g holds, 16 bits.
template <bool kBf16>
__device__ __forceinline__ void unpack_gates(ChannelScratch& s, int first, int lane, Gates& x) {
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    const uint2 four = *reinterpret_cast<const uint2*>(
        s.gates() + GateTile<uint16_t>::at(first + r, lane * kWidth));
    chunk::unpack<kBf16>(four.x, x[r][0], x[r][1]), chunk::unpack<kBf16>(four.y, x[r][2], x[r][3]);
  }
}

// What g holds.
__device__ __forceinline__ void load_gates(const ScanParams& p, ChannelScratch& s, int first,
                                           int lane, Gates& x) {
  const Problem& problem = p.problem;
  if (problem.g.type == Type::f32) {
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      const float4 four = *reinterpret_cast<const float4*>(
          s.gates() + GateTile<float>::at(first + r, lane * kWidth));
      x[r][0] = four.x, x[r][1] = four.y, x[r][2] = four.z, x[r][3] = four.w;
    }
  } else if (problem.g.type == Type::bf16) {
    unpack_gates<true>(s, first, lane, x);
  } else {
    unpack_gates<false>(s, first, lane, x);
  }
}

// Factors of the lane's token, by one warp.
template <bool kDelta>
__device__ __forceinline__ void make_factors(const ScanParams& p, ChannelScratch& s, int lane) {
  const bool norm = p.problem.qk_norm;
  const float norm_k = norm ? ptx::inverse_root_approx(s.squares_k[lane] + 1e-6f) : 1.0f;
  const float norm_q = norm ? ptx::inverse_root_approx(s.squares_q[lane] + 1e-6f) : 1.0f;
  s.record.read_k[lane] = norm_k;
  s.record.read_q[lane] = p.scale * norm_q;
  s.record.write_k[lane] = norm_k;
  s.row_a[lane] = s.beta[lane] * norm_k;
  s.row_p[lane] = (kDelta ? kCut * kCut : kCut) * p.scale * norm_q;
  if (p.cuts.work == nullptr) return;
  float growth =
      kDelta ? fmaxf(1.0f, fabsf(1.0f - s.beta[lane] * s.squares_k[lane] * norm_k * norm_k)) : 1.0f;
#pragma unroll
  for (int bit = 16; bit >= 1; bit >>= 1) growth *= ptx::shuffle_xor(growth, bit);
  if (lane == 0)
    s.record.bound =
        growth * ptx::exp2(-((s.lowest[0] + s.lowest[1]) + (s.lowest[2] + s.lowest[3])));
}

}  // namespace linattn::cuda::sm90
