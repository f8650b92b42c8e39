// Operands of the chunk forward's products, by the type of q, k, v and o. 16-bit numbers are
// multiplied as they are. fp32 numbers are sums of two tf32 numbers, of whose products the smallest
// is left out: three m16n8k8, and what is lost is of fp32's own size. Left operands have 16 rows,
// right ones 16 columns, and both 16 places of the inner axis.
#pragma once

#include "cuda/portable/chunk.cuh"
#include "cuda/ptx/shared.cuh"
#include "cuda/ptx/tf32.cuh"

namespace linattn::cuda::chunk {

template <Type kType>
inline constexpr bool kWide = kType == Type::f32;

// 1 / sqrt(x). For fp32 with a Newton step, within a rounding of the true one: a repeated key
// brings the same error in every token, which grows with their number.
template <Type kType>
__device__ __forceinline__ float inverse_root(float x) {
  const float y = rsqrtf(x);
  if constexpr (!kWide<kType>) return y;
  return fmaf(0.5f * y, fmaf(-x * y, y, 1.0f), y);
}

template <Type kType>
inline constexpr bool kIsBf16 = kType == Type::bf16;
template <Type kType>
inline constexpr int kBytes = kWide<kType> ? 4 : 2;

// What the unit's number is xored with in row `row`, so that rows that are fetched together lie in
// different banks: of fp32 the rows 0 to 3, 4 to 7, the even and the odd ones.
template <Type kType>
__device__ __forceinline__ int turn(int row) {
  return kWide<kType> ? (row << 1 & 6) ^ (row >> 1 & 2) : row & 7;
}

// Byte of 16-byte unit `unit` of row `row` in a tile of rows of kDim numbers.
template <Type kType, int kDim>
__device__ __forceinline__ int unit_at(int row, int unit) {
  if constexpr (kWide<kType>)  // of constant units the upper bits stay constants
    return row * kDim * 4 + ((unit & ~7) << 4) + (((unit & 7) ^ turn<kType>(row)) << 4);
  else
    return swizzled<kDim>(row, unit);
}
template <Type kType>
__device__ __forceinline__ int square_unit_at(int row, int unit) {
  if constexpr (kWide<kType>)
    return unit_at<kType, kChunk>(row, unit);
  else
    return swizzled_square(row, unit);
}

// Byte of a number.
template <Type kType, int kDim>
__device__ __forceinline__ int number_at(int row, int channel) {
  constexpr int kUnit = 16 / kBytes<kType>;
  return unit_at<kType, kDim>(row, channel / kUnit) + channel % kUnit * kBytes<kType>;
}

// An fp32 number as tf32 numbers, the upper one rounded: of the lower one the tensor cores then
// drop no more than a bit. NaN and infinities make `low` a NaN.
struct Split {
  uint32_t high, low;
  __device__ __forceinline__ explicit Split(float x)
      : high(ptx::float_bits(x) + 0x1000u), low(ptx::float_bits(x - ptx::tf32_value(high))) {}
};

// Of fp32: two blocks of 8 places, in which lane c % 4 has the places 2c and 2c + 1 of the inner
// axis where the instruction has c and c + 4: neighbours in memory, and in accumulators.
template <Type kType>
struct Left {
  uint32_t word[4];
};
template <>
struct Left<Type::f32> {
  uint32_t high[2][4], low[2][4];
};

template <Type kType>
struct Right {
  uint32_t word[4];
};
template <>
struct Right<Type::f32> {
  float x[2][2][2];  // [tile of 8 columns][block][place]
};

// Accumulators of two neighbouring tiles of 8 columns as left operand.
template <Type kType>
__device__ __forceinline__ void pack_left(Left<kType>& a, const float (&x0)[4],
                                          const float (&x1)[4]) {
  if constexpr (kWide<kType>) {
#pragma unroll
    for (int block = 0; block < 2; ++block)
#pragma unroll
      for (int at = 0; at < 4; ++at) {
        const int e = at % 2 * 2 + at / 2;
        const Split split(block == 0 ? x0[e] : x1[e]);
        a.high[block][at] = split.high, a.low[block][at] = split.low;
      }
  } else {
    a.word[0] = pack<kIsBf16<kType>>(x0[0], x0[1]), a.word[1] = pack<kIsBf16<kType>>(x0[2], x0[3]);
    a.word[2] = pack<kIsBf16<kType>>(x1[0], x1[1]), a.word[3] = pack<kIsBf16<kType>>(x1[2], x1[3]);
  }
}

// 32 rows of q or k into a tile; rows and channels that do not exist become zero.
template <Type kType, int kDim>
__device__ __forceinline__ void load_tile(const void* data, int64_t offset, int64_t stride_t,
                                          int rows, int dim, bool vectors, char* tile, int thread,
                                          int threads) {
  if constexpr (kWide<kType>) {
    constexpr int kUnits = kDim / 4;
    const int unit = thread % kUnits;
    const auto* base = static_cast<const float*>(data) + offset;
    for (int row = thread / kUnits; row < kChunk; row += threads / kUnits) {
      const auto* from = base + row * stride_t + unit * 4;
      char* to = tile + unit_at<kType, kDim>(row, unit);
      if (vectors) {
        const bool exists = row < rows && unit * 4 < dim;
        ptx::copy_16_async(ptx::shared_address(to), exists ? from : base, exists);
        continue;
      }
#pragma unroll
      for (int e = 0; e < 4; ++e)
        reinterpret_cast<float*>(to)[e] = row < rows && unit * 4 + e < dim ? from[e] : 0.0f;
    }
  } else {
    load_rows<kDim>(data, offset, stride_t, rows, dim, vectors, tile, thread, threads);
  }
}

// 16 rows from row0, 16 channels from 16 * kk.
template <Type kType, int kDim>
__device__ __forceinline__ void load_left(Left<kType>& a, uint32_t tile, int row0, int kk,
                                          int lane) {
  if constexpr (kWide<kType>) {
    float x[2][4];
#pragma unroll
    for (int tile8 = 0; tile8 < 2; ++tile8)
#pragma unroll
      for (int side = 0; side < 2; ++side)
        ptx::load_shared(tile + number_at<kType, kDim>(row0 + side * 8 + lane / 4,
                                                       kk * 16 + tile8 * 8 + lane % 4 * 2),
                         x[tile8][side * 2], x[tile8][side * 2 + 1]);
    pack_left<kType>(a, x[0], x[1]);
  } else {
    load_a<kDim>(a.word, tile, row0, kk, lane);
  }
}

// 16 rows are the columns, 16 channels from 16 * kk the inner axis.
template <Type kType, int kDim>
__device__ __forceinline__ void load_right(Right<kType>& b, uint32_t tile, int row0, int kk,
                                           int lane) {
  if constexpr (kWide<kType>) {
#pragma unroll
    for (int half = 0; half < 2; ++half)
#pragma unroll
      for (int block = 0; block < 2; ++block)
        ptx::load_shared(tile + number_at<kType, kDim>(row0 + half * 8 + lane / 4,
                                                       kk * 16 + block * 8 + lane % 4 * 2),
                         b.x[half][block][0], b.x[half][block][1]);
  } else {
    load_b<kDim>(b.word, tile, row0, kk, lane);
  }
}

// The same with rows as the inner axis and channels from 16 * jj as columns.
template <Type kType, int kDim>
__device__ __forceinline__ void load_right_trans(Right<kType>& b, uint32_t tile, int row0, int jj,
                                                 int lane) {
  if constexpr (kWide<kType>) {
#pragma unroll
    for (int half = 0; half < 2; ++half)
#pragma unroll
      for (int block = 0; block < 2; ++block)
#pragma unroll
        for (int e = 0; e < 2; ++e)
          b.x[half][block][e] =
              ptx::load_shared(tile + number_at<kType, kDim>(row0 + block * 8 + lane % 4 * 2 + e,
                                                             jj * 16 + half * 8 + lane / 4));
  } else {
    load_b_trans<kDim>(b.word, tile, row0, jj, lane);
  }
}

// Columns 16 i and on, places 16 * block and on of a 32x32 matrix stored [column][place].
template <Type kType>
__device__ __forceinline__ void load_right_square(Right<kType>& b, uint32_t square, int i,
                                                  int block, int lane) {
  if constexpr (kWide<kType>)
    load_right<kType, kChunk>(b, square, i * 16, block, lane);
  else
    load_b_square(b.word, square, i, block, lane);
}

// x += a times one tile of 8 columns, of fp32. The upper digits' products go to `high`, the others
// to `low`, which may be the same: small terms first.
__device__ __forceinline__ void multiply_wide(float (&high)[4], float (&low)[4],
                                              const Left<Type::f32>& a, const float (&b)[2][2]) {
#pragma unroll
  for (int block = 0; block < 2; ++block) {
    const Split b0(b[block][0]), b1(b[block][1]);
    ptx::mma_m16n8k8_tf32(low, a.low[block], b0.high, b1.high);
    ptx::mma_m16n8k8_tf32(low, a.high[block], b0.low, b1.low);
    ptx::mma_m16n8k8_tf32(high, a.high[block], b0.high, b1.high);
  }
}

// x += the upper digits of both, for both tiles.
__device__ __forceinline__ void multiply_rest(float (&x)[2][4], const Left<Type::f32>& a,
                                              const Right<Type::f32>& b) {
#pragma unroll
  for (int tile = 0; tile < 2; ++tile)
#pragma unroll
    for (int block = 0; block < 2; ++block)
      ptx::mma_m16n8k8_tf32(x[tile], a.high[block], ptx::float_bits(b.x[tile][block][0]),
                            ptx::float_bits(b.x[tile][block][1]));
}

// x += a b for both tiles.
template <Type kType>
__device__ __forceinline__ void multiply(float (&x0)[4], float (&x1)[4], const Left<kType>& a,
                                         const Right<kType>& b) {
  if constexpr (kWide<kType>) {
    multiply_wide(x0, x0, a, b.x[0]);
    multiply_wide(x1, x1, a, b.x[1]);
  } else {
    ptx::mma_m16n8k16<kIsBf16<kType>>(x0, a.word, b.word[0], b.word[1]);
    ptx::mma_m16n8k16<kIsBf16<kType>>(x1, a.word, b.word[2], b.word[3]);
  }
}
template <Type kType>
__device__ __forceinline__ void multiply(float (&x)[2][4], const Left<kType>& a,
                                         const Right<kType>& b) {
  multiply<kType>(x[0], x[1], a, b);
}

}  // namespace linattn::cuda::chunk
