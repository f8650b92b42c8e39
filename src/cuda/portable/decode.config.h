// Rows of the decode kernel: what is compiled (variants) and how one warp's tile is cut (shapes).
#pragma once

#include <cstdint>

namespace linattn::cuda {

// A variant is a number, because a class-type template argument of a __global__ in a namespace does
// not pass nvcc 13.0 with g++.
enum DecodeState { kStateF32 = 0, kStateBf16 = 1, kStateAny = 2 };

struct DecodeVariant {
  bool v_first;  // states [V,K]
  int state;   // DecodeState; kStateAny reads in_type and out_type at run time, element by element
  bool delta;  // update
  bool channel;  // gate per key channel; otherwise one decay per head, 1 without a gate

  constexpr int number() const { return v_first + 2 * state + 8 * delta + 16 * channel; }
};

constexpr DecodeVariant decode_variant(int number) {
  return {(number & 1) != 0, (number >> 1) & 3, (number & 8) != 0, (number & 16) != 0};
}
inline constexpr int kDecodeVariants = 32;

// A team of warps_k warps owns lanes_v * columns columns of V and every key channel:
// 32 / lanes_v * warps_k lanes * channels.
struct DecodeShape {
  // K = V = dim, states without gaps, bf16 tokens, gates and beta fp32 or bf16, strides below 2^31
  // bytes: no masks, constant offsets, short products. 0: none of this, K <= 256.
  int dim;
  int lanes_v;
  int columns;   // of V a lane
  int channels;  // of K a lane
  int teams;     // a CTA
  int warps_k;   // a team; above 1 they meet at a barrier of the CTA
  int min_ctas;  // an SM, for the register budget
  // Tokens are prepared once for all warps of a CTA, whose teams are neighbours of one state.
  bool together = false;

  constexpr int lanes_k() const { return 32 / lanes_v; }
  constexpr int tile_v() const { return lanes_v * columns; }
  constexpr int capacity_k() const { return lanes_k() * warps_k * channels; }
  constexpr int threads() const { return 32 * teams * warps_k; }
};

// Measured on an H200, one step of KDA, N = 256, HV = 128; docs/kernels/decode.md has the rest.
inline constexpr DecodeShape kDecodeShapes[] = {
    // V first, K = V = 128.
    {128, 1, 8, 4, 1, 1, 20},  // 0: fp32 1.034 ms
    {128, 2, 8, 8, 1, 1, 14},  // 1: bf16 0.527 ms
    {0, 1, 4, 8, 1, 1, 1},     // 2: V first, K <= 256
    // K first, K = V = 128: rows in segments of 256 bytes of fp32.
    {128, 16, 4, 16, 1, 4, 4},  // 3: fp32 1.046 ms, bf16 0.556 ms
    {0, 2, 4, 16, 2, 1, 1},     // 4: K first, K <= 256
    // Several tokens: few lanes along K, whose sums then take few exchanges. For 2, 4, 8 tokens:
    {128, 4, 4, 16, 4, 1, 3, true},   // 5: V first
    {128, 16, 4, 16, 1, 4, 4, true},  // 6: K first, fp32 1.060, 1.077, 1.620 ms
    // K = V = 64 and 256, with as many bytes a CTA.
    {64, 2, 8, 4, 1, 1, 16},    // 7: V first, fp32
    {64, 4, 8, 8, 1, 1, 14},    // 8: V first, bf16
    {64, 16, 4, 16, 1, 2, 8},   // 9: K first
    {256, 1, 4, 8, 1, 1, 16},   // 10: V first, fp32
    {256, 1, 8, 8, 1, 1, 14},   // 11: V first, bf16
    {256, 16, 4, 16, 1, 8, 2},  // 12: K first
    // Losers, which bench/cuda/decode_tune.cu still times; the library does not compile them.
    {128, 2, 4, 8, 1, 1, 20},   // 13: V first, fp32 1.043, bf16 0.636
    {128, 2, 8, 8, 1, 1, 12},   // 14: V first, fp32 1.078, bf16 0.573: row 1 with more registers
    {128, 1, 16, 4, 1, 1, 12},  // 15: V first, fp32 1.071, bf16 0.571
    {128, 4, 4, 16, 1, 1, 16},  // 16: V first, bf16 0.595
    {128, 4, 4, 16, 1, 1, 12},  // 17: K first, segments of 64 bytes: fp32 1.349, bf16 0.888
    {128, 4, 4, 16, 2, 1, 6},   // 18: K first, two such side by side: fp32 1.155, bf16 0.717
    {128, 8, 4, 16, 1, 2, 7},   // 19: K first, segments of 128 bytes: fp32 1.100
    {128, 8, 4, 8, 1, 4, 5},    // 20: the same, four warps: fp32 1.088
    {128, 32, 4, 16, 1, 8, 2},  // 21: K first, whole states: fp32 1.053
    {128, 8, 8, 8, 1, 4, 4},    // 22: K first, fp32 1.175, bf16 0.558
    {128, 16, 4, 8, 1, 8, 2},   // 23: K first, bf16 0.866
    // Several tokens, V first; fp32 with 2, 4, 8 of them.
    {128, 1, 8, 4, 2, 1, 9, true},   // 24: 1.112, 1.739, 2.581
    {128, 1, 8, 4, 4, 1, 4, true},   // 25: 1.127, 1.409, 2.405
    {128, 1, 8, 4, 8, 1, 2, true},   // 26: 1.215, 1.440, 1.983
    {128, 2, 4, 8, 4, 1, 4, true},   // 27
    {128, 4, 2, 16, 4, 1, 4, true},  // 28
    {128, 4, 4, 16, 2, 1, 6, true},  // 29
};
inline constexpr int kDecodeShapesUsed = 13;
inline constexpr int kDecodeShapeCount = sizeof(kDecodeShapes) / sizeof(kDecodeShapes[0]);

// What the library chooses from, and so what it compiles: the exact shapes for each update and
// gate, the others (dim 0) once for all of them, with four fp32 an access or an element of any
// type. -1: there is none.
constexpr int decode_shape(bool v_first, int state, int dim, bool together) {
  if (together) return dim != 128 ? -1 : v_first ? 5 : 6;
  if (dim == 0) return v_first ? 2 : 4;
  const int row = !v_first ? 2 : state == kStateF32 ? 0 : 1;
  return dim == 64 ? 7 + row : dim == 256 ? 10 + row : row == 2 ? 3 : row;
}
constexpr bool decode_is_compiled(DecodeVariant variant, int shape) {
  const DecodeShape& row = kDecodeShapes[shape];
  if (shape != decode_shape(variant.v_first, variant.state, row.dim, row.together)) return false;
  if (row.dim > 0) return variant.state == kStateF32 || variant.state == kStateBf16;
  return (variant.state == kStateF32 || variant.state == kStateAny) && variant.delta &&
         variant.channel;
}

}  // namespace linattn::cuda
