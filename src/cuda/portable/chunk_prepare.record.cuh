// What both kinds of preparation do: write a chunk's squares, solve.
#pragma once

#include <type_traits>

#include "cuda/portable/chunk_operand.cuh"
#include "cuda/portable/chunk_place.cuh"

namespace linattn::cuda::chunk {

template <Type kType>
using Number = std::conditional_t<kWide<kType>, float, uint16_t>;

// A number of a square.
template <Type kType>
__device__ __forceinline__ Number<kType>* square_at(char* square, int row, int column) {
  constexpr int kUnit = 16 / kBytes<kType>;
  char* unit = square + square_unit_at<kType>(row, column / kUnit);
  return reinterpret_cast<Number<kType>*>(unit) + column % kUnit;
}

// What A is made of, [32][kChunk + 4] of it.
template <Type kType>
using OfA = std::conditional_t<kWide<kType>, double, float>;
template <Type kType>
using SquareA = OfA<kType>[kChunk][kChunk + 4];

// An element of P: split for the delta update of 16-bit numbers, where the record has room for the
// low part.
template <Type kType>
__device__ __forceinline__ void store_p(char* record, const ChunkRecord& layout, int row,
                                        int column, float x) {
  Number<kType>* to = square_at<kType>(record + layout.p(), row, column);
  if constexpr (kWide<kType>) {
    *to = x;
  } else if (layout.delta) {
    uint32_t high, low;
    pack_split<kIsBf16<kType>>(x, 0.0f, high, low);
    *to = static_cast<uint16_t>(high);
    *square_at<kType>(record + layout.p_low(), row, column) = static_cast<uint16_t>(low);
  } else {
    *to = static_cast<uint16_t>(pack<kIsBf16<kType>>(x, 0.0f));
  }
}

// The upper right block of P, which no product touches.
template <Type kType>
__device__ __forceinline__ void clear_p(char* record, const ChunkRecord& layout, int thread) {
  constexpr int kUnits = kBytes<kType>;  // of 16 columns
  if (thread >= kBlock * kUnits) return;
  const int at = square_unit_at<kType>(thread / kUnits, kUnits + thread % kUnits);
  *reinterpret_cast<uint4*>(record + layout.p() + at) = make_uint4(0, 0, 0, 0);
  if (!kWide<kType> && layout.delta)
    *reinterpret_cast<uint4*>(record + layout.p_low() + at) = make_uint4(0, 0, 0, 0);
}

// T = (I + A)^-1 by forward substitution, one column a lane; written as T diag(beta). A series in
// powers of A would not survive repeated keys.
template <Type kType>
__device__ __forceinline__ void solve(const SquareA<kType>& a, const float* beta, char* record,
                                      int lane) {
  OfA<kType> x[kChunk];
#pragma unroll
  for (int i = 0; i < kChunk; ++i) {
    OfA<kType> sum[4] = {OfA<kType>(i == lane ? 1 : 0), 0, 0, 0};
#pragma unroll
    for (int m = 0; m < i; ++m) {
      if constexpr (kWide<kType>)
        sum[m % 4] = fma(-a[i][m], x[m], sum[m % 4]);
      else
        sum[m % 4] = fmaf(-a[i][m], x[m], sum[m % 4]);
    }
    x[i] = (sum[0] + sum[1]) + (sum[2] + sum[3]);
  }
  const float scale = beta[lane];
  // Squares lie alike in all records of the update and type. The turns take a column to one of four
  // places of a row.
  constexpr ChunkRecord layout{64, false, true, kBytes<kType>};
  constexpr int kLow = (layout.t_low() - layout.t()) / kBytes<kType>;
  Number<kType>* column[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const int row = kWide<kType> ? i : 2 * i;
    column[i] = square_at<kType>(record + layout.t(), row, lane) - row * kChunk;
  }
#pragma unroll
  for (int i = 0; i < kChunk; ++i) {
    if constexpr (kWide<kType>) {
      float* to = column[turn<kType>(i) / 2] + i * kChunk;
      const double y = x[i] * static_cast<double>(scale);
      const auto high = static_cast<float>(y);
      to[0] = high;
      to[kLow] = static_cast<float>(y - static_cast<double>(high));
    } else {
      uint32_t high, low;
      pack_split<kIsBf16<kType>>(x[i] * scale, 0.0f, high, low);
      uint16_t* to = column[i / 2 % 4] + i * kChunk;
      to[0] = static_cast<uint16_t>(high);
      to[kLow] = static_cast<uint16_t>(low);
    }
  }
}

}  // namespace linattn::cuda::chunk
