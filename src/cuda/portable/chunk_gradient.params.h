// What the chunked backward's kernels are given, and the images that the scans hand to the
// gradients.
#pragma once

#include <cstdint>

#include "cuda/portable/chunk.params.h"

namespace linattn::cuda {

// Images of 16-bit numbers in the order in which a lane holds them, so that it writes 16 bytes at a
// time. Of a state, [value rows][dim]: place 8c + 2j + e of each 32 channels holds channel
// 8j + 2c + e. Of 32 tokens, [value rows][32]: likewise for tokens.
LINATTN_HOST_DEVICE constexpr int of_place(int place) {
  return place % 8 / 2 * 8 + place / 8 * 2 + place % 2;
}

// The record that preparation hands to the scans and the gradients.
// One chunk of one value head, in the byte image of the scan's shared memory. Rows of `dim` 16-bit
// channels are swizzled: 16-byte unit u of row r lies at u ^ (r & 7), in squares of 32x32 at
// u ^ (r / 2 & 3). Every byte is written, and none is padding. Scalars exist for gates that
// are one number a token; operands then are q and k as the caller has them.
struct GradientRecord {
  int dim;       // K rounded up: 64, 128, 256
  bool channel;  // gate per key channel
  bool delta;

  LINATTN_HOST_DEVICE constexpr int rows_bytes() const { return kChunk * dim * 2; }
  LINATTN_HOST_DEVICE constexpr int square_bytes() const { return kChunk * kChunk * 2; }
  // [32,32] each. The delta update has them as sums of two narrow numbers, because their rounding
  // adds up over repeated keys.
  LINATTN_HOST_DEVICE constexpr int p() const { return 0; }  // tril(Q~ K^T)
  LINATTN_HOST_DEVICE constexpr int p_low() const { return square_bytes(); }
  // (I + B A)^-1 for B = diag(beta), what the gradients use.
  LINATTN_HOST_DEVICE constexpr int t() const { return 2 * square_bytes(); }
  LINATTN_HOST_DEVICE constexpr int t_low() const { return 3 * square_bytes(); }
  // channel: decay of the chunk [dim]; else read_k, read_q, write_k [32] each, decay [4]
  LINATTN_HOST_DEVICE constexpr int scalars() const { return square_bytes() * (delta ? 4 : 1); }
  // beta, inverse norms of q and of k, sums of log2 decays (no channel gates), [32] each.
  LINATTN_HOST_DEVICE constexpr int tokens() const {
    return scalars() + (channel ? dim * 4 : 3 * kChunk * 4 + 16);
  }
  LINATTN_HOST_DEVICE constexpr int q() const { return tokens() + 4 * kChunk * 4; }  // Q~ [32,dim]
  LINATTN_HOST_DEVICE constexpr int update() const {
    return q() + rows_bytes();
  }  // k to the chunk's end [32,dim]
  LINATTN_HOST_DEVICE constexpr int k() const {
    return update() + rows_bytes();
  }  // K~ [32,dim], delta
  // (I + A B)^-1, what the states use.
  LINATTN_HOST_DEVICE constexpr int e() const {
    return !channel ? q() : update() + rows_bytes() * (delta ? 2 : 1);
  }
  LINATTN_HOST_DEVICE constexpr int e_low() const { return e() + square_bytes(); }
  LINATTN_HOST_DEVICE constexpr int bytes() const { return e() + (delta ? 2 * square_bytes() : 0); }
};

// fp16 has no room for gradients and decays that are small beside 1.
inline constexpr bool kBf16 = true;

inline constexpr int kSlabRows = 32;  // value rows that the gradients take at a time

LINATTN_HOST_DEVICE constexpr int gradient_threads(int dim) { return dim * 2; }

struct ChunkGradientParams {
  ChunkParams chunk;
  char* states;           // [chunk slots, HV, value rows, dim]: S^T before each chunk
  char* state_gradients;  // likewise: the gradient of S^T after it
  // [chunk slots, HV, 2, value rows, 32], the second half a low part; delta update alone.
  char* errors;           // E, what beta multiplies
  char* error_gradients;  // dR, before it is multiplied by beta
  float* row_sums;        // [chunk slots, H, 2, 32, dim]: dq and dk of the value heads so far; null
                          // where HV = H
  float* gate_sums;       // [chunk slots, HV, gate_dim + 1]; null where nobody asked
  FastDivisor heads_qk;   // H
  int32_t value_rows;
  int32_t gate_dim;
  bool do_vectors;  // rows of do may be read 16 bytes at a time
  bool dv_pairs;    // dv is of q's type and may be written two neighbours at a time
  bool dq_vectors, dk_vectors, dg_vectors;  // as many neighbours at a time as q is read
  bool qk_pairs;                            // q and k may be read so
};

static_assert(sizeof(ChunkGradientParams) <= 4096 - 512, "kernel parameters");

}  // namespace linattn::cuda
