// What a lane of the scan writes of o: its warp's 16 value columns, 16 tokens at a time.
#pragma once

#include "cuda/portable/chunk_operand.cuh"

namespace linattn::cuda::chunk {

// 16-bit numbers cross the warp first: a lane writes tokens lane/4, +8 and so on, values 2 (lane%4)
// (+1) and +8.
template <Type kType>
struct Outputs {
  uint16_t* at;       // of the chunk's first token for this warp
  int64_t step;       // to 8 tokens on
  int columns;        // that exist, from the lane's first
  bool pairs, whole;  // two neighbours at a time; all columns exist, in pairs

  __device__ __forceinline__ Outputs(const ChunkParams& p, int batch, int begin, int hv, int v0,
                                     int lane) {
    const TokenView& view = p.problem.o;
    const int v = v0 + lane % 4 * 2;
    at = static_cast<uint16_t*>(p.args.o) + view.at(batch, begin + lane / 4, hv, v);
    step = 8 * view.t;
    columns = p.dim_v - v;
    pairs = p.o_pairs;
    whole = p.o_pairs && v0 + 16 <= p.dim_v;
  }

  __device__ __forceinline__ void next_chunk() { at += 4 * step; }

  // 16 tokens from `eighth` eights on, of which `rows` exist.
  __device__ __forceinline__ void store(int eighth, int rows, int lane,
                                        const float (&x)[2][4]) const {
    uint16_t* to = at + eighth * step;
    uint32_t two[2][2];
#pragma unroll
    for (int t = 0; t < 2; ++t)
#pragma unroll
      for (int side = 0; side < 2; ++side)
        two[t][side] =
            ptx::movmatrix_trans(pack<kIsBf16<kType>>(x[t][2 * side], x[t][2 * side + 1]));
    if (whole && rows >= 16) {
#pragma unroll
      for (int t = 0; t < 2; ++t, to += step)
#pragma unroll
        for (int side = 0; side < 2; ++side)
          *reinterpret_cast<uint32_t*>(to + side * 8) = two[t][side];
      return;
    }
#pragma unroll
    for (int t = 0; t < 2; ++t, to += step)
#pragma unroll
      for (int side = 0; side < 2; ++side) {
        uint16_t* place = to + side * 8;
        if (8 * t + lane / 4 >= rows || side * 8 >= columns) continue;
        if (pairs) {
          *reinterpret_cast<uint32_t*>(place) = two[t][side];
        } else {
          place[0] = static_cast<uint16_t>(two[t][side]);
          if (side * 8 + 1 < columns) place[1] = static_cast<uint16_t>(two[t][side] >> 16);
        }
      }
  }
};

// Of fp32, 8 lanes together fill 32 bytes: tokens 2 (lane%4) (+1) and +8, values lane/4 and +8.
template <>
struct Outputs<Type::f32> {
  float* at;
  int64_t token, step;  // to the next token, and 8 on
  int columns;

  __device__ __forceinline__ Outputs(const ChunkParams& p, int batch, int begin, int hv, int v0,
                                     int lane) {
    const TokenView& view = p.problem.o;
    const int v = v0 + lane / 4;
    at = static_cast<float*>(p.args.o) + view.at(batch, begin + lane % 4 * 2, hv, v);
    token = view.t, step = 8 * view.t;
    columns = p.dim_v - v;
  }

  __device__ __forceinline__ void next_chunk() { at += 4 * step; }

  __device__ __forceinline__ void store(int eighth, int rows, int lane,
                                        const float (&x)[2][4]) const {
    float* to = at + eighth * step;
#pragma unroll
    for (int t = 0; t < 2; ++t, to += step)
#pragma unroll
      for (int e = 0; e < 4; ++e)
        if (8 * t + lane % 4 * 2 + e % 2 < rows && e / 2 * 8 < columns)
          to[e % 2 * token + e / 2 * 8] = x[t][e];
  }
};

}  // namespace linattn::cuda::chunk
