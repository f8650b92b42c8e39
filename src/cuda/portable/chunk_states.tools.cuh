// Pieces of the backward's scans: a warp owns 16 value columns of one chain and every key channel
// of them; the state stays in its registers as fp32, as S^T in the accumulator layout, which is
// also the A operand's layout.
#pragma once

#include "cuda/portable/chunk.cuh"

namespace linattn::cuda {
namespace chunk::gradients {

template <int kDim>
struct State {
  float s[kDim / 8][4];  // tile j: value rows lane/4 (+8), channels 8j + 2 (lane%4) (+1)
};

// States travel between registers and memory through rows of shared memory, [16 v][dim k] a warp:
// with fragments addressed directly, offsets would take more registers than the state.
template <int kDim>
inline constexpr int kStateRow = kDim + 2;
template <int kDim>
inline constexpr int kStateBytes = 16 * kStateRow<kDim> * 4;

// Calls f(row element, offset in the tensor) for each element of the warp's part that exists.
template <int kDim, class F>
__device__ __forceinline__ void for_elements(const ChunkParams& p, const StateView& view,
                                             int64_t offset, int v0, int lane, float* rows, F&& f) {
#pragma unroll 1
  for (int i = lane; i < 16 * kDim; i += 32) {
    // Neighbouring lanes take neighbours in memory.
    const int v = view.k == 1 ? i / kDim : i % 16, k = view.k == 1 ? i % kDim : i / 16;
    if (v0 + v < p.dim_v && k < p.dim_k)
      f(rows[v * kStateRow<kDim> + k], offset + (v0 + v) * view.v + k * view.k);
  }
}

template <int kDim>
__device__ __forceinline__ float2* fragment(float* rows, int lane, int j, int side) {
  return reinterpret_cast<float2*>(rows + (lane / 4 + side * 8) * kStateRow<kDim> + 8 * j +
                                   lane % 4 * 2);
}

template <int kDim>
__device__ __forceinline__ void store_state(const ChunkParams& p, const StateView& view, void* data,
                                            int64_t offset, int v0, int lane, float* rows,
                                            const State<kDim>& state) {
#pragma unroll
  for (int j = 0; j < kDim / 8; ++j) {
    *fragment<kDim>(rows, lane, j, 0) = make_float2(state.s[j][0], state.s[j][1]);
    *fragment<kDim>(rows, lane, j, 1) = make_float2(state.s[j][2], state.s[j][3]);
  }
  __syncwarp();
  for_elements<kDim>(p, view, offset, v0, lane, rows,
                     [&](float x, int64_t at) { store_element(view.type, data, at, x); });
  __syncwarp();
}

template <int kDim>
__device__ __forceinline__ void load_state(const ChunkParams& p, const StateView& view,
                                           const void* data, int64_t n, int64_t hv, int v0,
                                           int lane, float* rows, State<kDim>& state) {
  for (int i = lane; i < 16 * kStateRow<kDim>; i += 32) rows[i] = 0.0f;
  __syncwarp();
  for_elements<kDim>(p, view, view.at(n, hv, 0, 0), v0, lane, rows,
                     [&](float& x, int64_t at) { x = load_element(view.type, data, at); });
  __syncwarp();
#pragma unroll
  for (int j = 0; j < kDim / 8; ++j) {
    const float2 low = *fragment<kDim>(rows, lane, j, 0), high = *fragment<kDim>(rows, lane, j, 1);
    state.s[j][0] = low.x, state.s[j][1] = low.y, state.s[j][2] = high.x, state.s[j][3] = high.y;
  }
}

// A row of the CTA's value columns in shared memory.
LINATTN_HOST_DEVICE constexpr int column_row_bytes(int warps) { return warps * 32 + 16; }

// Two stages where both fit 99 KB.
template <int kDim>
inline constexpr int kStages = kDim <= 128 ? 2 : 1;

struct Chain {
  int64_t n, hv, h;
  TokenRange range;
  int64_t first_chunk;
  int v0;  // of the CTA
};

// 32 rows of the CTA's columns of a tensor shaped as v; what does not exist becomes zero.
__device__ __forceinline__ void load_columns(const TokenView& view, const void* data,
                                             const Chain& c, int64_t begin, int rows, int dim_v,
                                             bool vectors, char* to, int warps, int thread) {
  const int threads = warps * 32;
  const int units = warps * 2;
  const int unit = thread % units, step = threads / units;
  const int columns = dim_v - c.v0;
  const auto* v = static_cast<const uint16_t*>(data) + view.at(c.range.batch, begin, c.hv, c.v0);
  const auto* from = v + thread / units * view.t + unit * 8;
  const int row_bytes = column_row_bytes(warps);
  to += unit * 16;
  int row = thread / units;
  if (vectors) {
    const int64_t stride = step * view.t;
    const uint32_t address = ptx::shared_address(to);
    const int present = unit * 8 < columns ? rows : 0;
    for (; row < kChunk; row += step, from += stride)
      ptx::copy_16_async(address + row * row_bytes, row < present ? from : v, row < present);
    return;
  }
  for (; row < kChunk; row += step, from += step * view.t) {
    auto* elements = reinterpret_cast<uint16_t*>(to + row * row_bytes);
#pragma unroll
    for (int e = 0; e < 8; ++e) elements[e] = row < rows && unit * 8 + e < columns ? from[e] : 0;
  }
}

// Accumulators of 32 tokens as A operands of two k blocks; kSplit: as sums of two narrow numbers.
template <bool kSplit>
struct Rows {
  uint32_t high[2][4];
  uint32_t low[kSplit ? 2 : 1][4];
};

// The warp's 16 columns as A operands of two k blocks of 16 tokens.
__device__ __forceinline__ void load_columns_transposed(uint32_t (&a)[2][4], uint32_t tile,
                                                        int warp, int warps, int lane) {
#pragma unroll
  for (int block = 0; block < 2; ++block) {
    const int m = lane / 8;
    ptx::ldmatrix_x4_trans(a[block],
                           tile + (block * 16 + (m >> 1) * 8 + lane % 8) * column_row_bytes(warps) +
                               warp * 32 + (m & 1) * 16);
  }
}

template <bool kBf16, bool kSplit>
__device__ __forceinline__ void pack_rows(Rows<kSplit>& rows, const float (&x)[4][4]) {
#pragma unroll
  for (int t = 0; t < 4; ++t)
#pragma unroll
    for (int side = 0; side < 2; ++side) {
      const int at = t % 2 * 2 + side;
      if constexpr (kSplit)
        pack_split<kBf16>(x[t][2 * side], x[t][2 * side + 1], rows.high[t / 2][at],
                          rows.low[t / 2][at]);
      else
        rows.high[t / 2][at] = pack<kBf16>(x[t][2 * side], x[t][2 * side + 1]);
    }
}

// x += rows square^T for a lower triangular 32x32 matrix: tile t needs k blocks up to t / 2. Of the
// products of split numbers that of both low parts is left out.
template <bool kBf16, bool kSplit>
__device__ __forceinline__ void multiply_square(float (&x)[4][4], const Rows<kSplit>& rows,
                                                uint32_t square, uint32_t square_low, int lane) {
#pragma unroll
  for (int i = 0; i < 2; ++i)
#pragma unroll
    for (int block = 0; block <= i; ++block) {
      uint32_t b[4];
      load_b_square(b, square, i, block, lane);
      ptx::mma_m16n8k16<kBf16>(x[2 * i], rows.high[block], b[0], b[1]);
      ptx::mma_m16n8k16<kBf16>(x[2 * i + 1], rows.high[block], b[2], b[3]);
      if constexpr (kSplit) {
        ptx::mma_m16n8k16<kBf16>(x[2 * i], rows.low[block], b[0], b[1]);
        ptx::mma_m16n8k16<kBf16>(x[2 * i + 1], rows.low[block], b[2], b[3]);
        load_b_square(b, square_low, i, block, lane);
        ptx::mma_m16n8k16<kBf16>(x[2 * i], rows.high[block], b[0], b[1]);
        ptx::mma_m16n8k16<kBf16>(x[2 * i + 1], rows.high[block], b[2], b[3]);
      }
    }
}

// o: the warp's 16 columns of the chunk's first row; `rows` of them and `columns` exist.
template <bool kBf16>
__device__ __forceinline__ void store_o(uint16_t* o, int64_t stride, int rows, int columns,
                                        bool pairs, int lane, const float (&x)[4][4]) {
  const int v = lane % 4 * 2;
  o += lane / 4 * stride + v;
#pragma unroll
  for (int t = 0; t < 4; ++t, o += 8 * stride)
#pragma unroll
    for (int side = 0; side < 2; ++side) {
      const uint32_t two = ptx::movmatrix_trans(pack<kBf16>(x[t][2 * side], x[t][2 * side + 1]));
      uint16_t* to = o + side * 8;
      if (8 * t + lane / 4 < rows && v + side * 8 < columns) {
        if (pairs) {
          *reinterpret_cast<uint32_t*>(to) = two;
        } else {
          to[0] = static_cast<uint16_t>(two);
          if (v + side * 8 + 1 < columns) to[1] = static_cast<uint16_t>(two >> 16);
        }
      }
    }
}

// state += rows tile: 32 tokens' columns times their keys.
template <bool kBf16, int kDim, bool kSplit>
__device__ __forceinline__ void update_state(State<kDim>& state, const Rows<kSplit>& rows,
                                             uint32_t tile, int lane) {
#pragma unroll
  for (int block = 0; block < 2; ++block)
#pragma unroll
    for (int jj = 0; jj < kDim / 16; ++jj) {
      uint32_t b[4];
      load_b_trans<kDim>(b, tile, block * 16, jj, lane);
      ptx::mma_m16n8k16<kBf16>(state.s[2 * jj], rows.high[block], b[0], b[1]);
      ptx::mma_m16n8k16<kBf16>(state.s[2 * jj + 1], rows.high[block], b[2], b[3]);
      if constexpr (kSplit) {
        ptx::mma_m16n8k16<kBf16>(state.s[2 * jj], rows.low[block], b[0], b[1]);
        ptx::mma_m16n8k16<kBf16>(state.s[2 * jj + 1], rows.low[block], b[2], b[3]);
      }
    }
}

// state *= the chunk's decay, channel by channel or one number.
template <int kDim, bool kChannel>
__device__ __forceinline__ void decay_state(State<kDim>& state, const float* scalars, int lane) {
  const int channel = lane % 4 * 2;
#pragma unroll
  for (int j = 0; j < kDim / 8; ++j) {
    const float2 decay = kChannel ? *reinterpret_cast<const float2*>(scalars + 8 * j + channel)
                                  : make_float2(scalars[3 * kChunk], scalars[3 * kChunk]);
    state.s[j][0] *= decay.x, state.s[j][1] *= decay.y;
    state.s[j][2] *= decay.x, state.s[j][3] *= decay.y;
  }
}

}  // namespace chunk::gradients
}  // namespace linattn::cuda
