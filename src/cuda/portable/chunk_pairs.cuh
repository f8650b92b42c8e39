// Pairs of tokens inside a sub-block of 8 rows: q and keys with the keys before them, under
// products of the decays between the two.
#pragma once

#include <type_traits>

#include "cuda/portable/chunk.cuh"

namespace linattn::cuda::chunk {

inline constexpr int kSub = 8;  // rows of a sub-block: one warp's

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

// Sum: what the lanes' parts are added up in.
template <int kGroup, class Sum = float, int kPer>
__device__ __forceinline__ Sum pair_group(const float (&q)[kSub][kPer],
                                          const float (&k)[kSub][kPer],
                                          const float (&d)[kSub][kPer], int lane) {
  constexpr int j = 2 * kGroup;
  float x[32];
  pair_column<j, 0>(q, k, d, x);
  pair_column<7 - j, 15 - 2 * j>(q, k, d, x);
  pair_column<j + 1, 16>(q, k, d, x);
  pair_column<6 - j, 29 - 2 * j>(q, k, d, x);
  if constexpr (std::is_same_v<Sum, float>) {
    return reduce_32(x, lane);
  } else {
    Sum parts[32];
#pragma unroll
    for (int i = 0; i < 32; ++i) parts[i] = x[i];
    return reduce_32(parts, lane);
  }
}

}  // namespace linattn::cuda::chunk
