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
  // K = V = 128, states without gaps, bf16 tokens, gates and beta fp32 or bf16, strides below 2^31
  // bytes: no masks, constant offsets, short products.
  bool exact;
  int lanes_v;
  int columns;   // of V a lane
  int channels;  // of K a lane
  int teams;     // a CTA
  int warps_k;   // a team; above 1 they meet at a barrier of the CTA
  int min_ctas;  // an SM, for the register budget

  constexpr int lanes_k() const { return 32 / lanes_v; }
  constexpr int tile_v() const { return lanes_v * columns; }
  constexpr int capacity_k() const { return lanes_k() * warps_k * channels; }
  constexpr int threads() const { return 32 * teams * warps_k; }
};

// Measured on an H200, one step of KDA, N = 256, HV = 128; docs/kernels/decode.md has the rest.
inline constexpr DecodeShape kDecodeShapes[] = {
    // V first, K = V = 128.
    {true, 1, 8, 4, 1, 1, 20},  // 0: fp32 1.034 ms
    {true, 2, 8, 8, 1, 1, 14},  // 1: bf16 0.527 ms
    {false, 1, 4, 8, 1, 1, 1},  // 2: V first, K <= 256
    // K first, K = V = 128: rows in segments of 256 bytes of fp32.
    {true, 16, 4, 16, 1, 4, 4},  // 3: fp32 1.046 ms, bf16 0.556 ms
    {false, 2, 4, 16, 2, 1, 1},  // 4: K first, K <= 256
    // Losers, which bench/cuda/decode_tune.cu still times; the library does not compile them.
    {true, 2, 4, 8, 1, 1, 20},   // 5: V first, fp32 1.043, bf16 0.636
    {true, 2, 8, 8, 1, 1, 12},   // 6: V first, fp32 1.078, bf16 0.573: row 1 with more registers
    {true, 1, 16, 4, 1, 1, 12},  // 7: V first, fp32 1.071, bf16 0.571
    {true, 4, 4, 16, 1, 1, 16},  // 8: V first, bf16 0.595
    {true, 4, 4, 16, 1, 1, 12},  // 9: K first, segments of 64 bytes: fp32 1.349, bf16 0.888
    {true, 4, 4, 16, 2, 1, 6},   // 10: K first, two such side by side: fp32 1.155, bf16 0.717
    {true, 8, 4, 16, 1, 2, 7},   // 11: K first, segments of 128 bytes: fp32 1.100
    {true, 8, 4, 8, 1, 4, 5},    // 12: the same, four warps: fp32 1.088
    {true, 32, 4, 16, 1, 8, 2},  // 13: K first, whole states: fp32 1.053
    {true, 8, 8, 8, 1, 4, 4},    // 14: K first, fp32 1.175, bf16 0.558
    {true, 16, 4, 8, 1, 8, 2},   // 15: K first, bf16 0.866
};
inline constexpr int kDecodeShapeCount = sizeof(kDecodeShapes) / sizeof(kDecodeShapes[0]);

// What the library chooses from, and so what it compiles: the exact shapes for each update and
// gate, the others once for all of them, with four fp32 an access or an element of any type.
constexpr int decode_shape(bool v_first, int state, bool exact) {
  if (!exact) return v_first ? 2 : 4;
  return v_first ? (state == kStateF32 ? 0 : 1) : 3;
}
constexpr bool decode_is_compiled(DecodeVariant variant, int shape) {
  const bool exact = variant.state == kStateF32 || variant.state == kStateBf16;
  if (exact && shape == decode_shape(variant.v_first, variant.state, true)) return true;
  return (variant.state == kStateF32 || variant.state == kStateAny) && variant.delta &&
         variant.channel && shape == decode_shape(variant.v_first, variant.state, false);
}

}  // namespace linattn::cuda
