// Tiles, records and shared memory of the Hopper chunk kernels for gates that are one number a
// token.
#pragma once

#include <cstddef>
#include <cstdint>

#include "cuda/portable/chunk.params.h"
#include "cuda/tile/tile.h"
#include "recurrence/sequences.h"

namespace linattn::cuda::sm90 {

inline constexpr int kDim = 128;        // K
inline constexpr int kSlab = 64;        // value columns of a state warpgroup
inline constexpr int kWarpgroup = 128;  // threads

using RowsTile = tile::Tile<2 * kChunk, kDim, 2>;  // k above q: [token, channel]
using ValuesTile = tile::Tile<kChunk, kSlab, 2>;   // v: [token, column]
using SquareTile = tile::Tile<kChunk, kChunk, 4>;  // P: [row, column], see square_column
// T: [row, column] as the sum of two bf16 numbers, the larger ones left of the smaller ones.
using SplitTile = tile::Tile<kChunk, 2 * kChunk, 2>;

// Column j of P lies at column square_column(j): the accumulators' pairs of neighbouring columns
// are then an A operand of fp32 numbers as they are.
LINATTN_HOST_DEVICE constexpr int square_column(int j) {
  return (j & ~7) | (j & 1) << 2 | (j & 7) >> 1;
}

// Where the tensor cores cut bits of the other factor's mantissa off, this makes up for it on
// average: 0 to 2^-10 of a mantissa in [1, 2) goes.
inline constexpr float kCut = 1.0f + 0.3466f / 1024.0f;

// What preparation hands to the scan, one chunk of one value head, in the scan's memory image.
struct alignas(128) Record {
  float t[kChunk *
          kChunk];  // kCut (I + A)^-1 diag(beta) as SquareTile; absent for the additive update
  float p[kChunk * kChunk];  // tril(Q~ K^T), SquareTile; times kCut, for the delta update kCut^2
  // Per-token factors, applied to accumulators.
  float read_k[kChunk];   // |k|^-1 exp(G): what reads the state for K~
  float read_q[kChunk];   // scale |q|^-1 exp(G)
  float write_k[kChunk];  // |k|^-1 exp(G_C - G)
  float decay;            // exp(G_C)
  // Of the spectral norm of the map from the state before the chunk to the one behind it:
  // exp(G_C) prod max(1, |1 - beta |k|^2|). Copied to Cuts::bounds.
  float bound;
};

// A state that less than this is left of counts as zero: what a piece of a sequence does not see of
// what lies far before it.
inline constexpr float kForgotten = 0x1p-30f, kLogForgotten = -30.0f;

// Scratch of a preparation warp.
struct alignas(128) Tokens {
  float square[kChunk * kChunk];          // A, the inverses of its diagonal blocks, T, P
  float g_whole[kChunk], g_part[kChunk];  // cumulated log2 decays: whole part and the rest
  float beta[kChunk];
  float norm_k[kChunk];  // |k|^2, then 1 / |k|
  float of_a[kChunk];    // beta / |k|: of a row of A
  float of_p[kChunk];    // |q|^2, then scale / |q|
  float growth;          // of the state, at most: the updates' part of Record::bound
};

// Value heads of one q/k head that share its tile, a warp each.
inline constexpr int kMostWarps = 4;
LINATTN_HOST_DEVICE constexpr int prepare_barrier_at(int warps) {
  return RowsTile::kTileBytes + warps * static_cast<int>(sizeof(Tokens));
}
LINATTN_HOST_DEVICE constexpr int prepare_bytes(int warps) {
  return tile::kAlignment + prepare_barrier_at(warps) + 16;
}

// What a CTA of the scan works on. In shared memory, because registers are short.
struct Chain {
  int64_t n, hv, h;
  TokenRange range;
  int64_t first_chunk;  // slot of the chain's first record
  int64_t slot;         // initial state
  int64_t row;          // first row of intermediate states
  // Of the chain's chunks, own.. end - 1 give outputs; those from `begin` bring the state up to
  // date.
  int begin, own, end;
  int v0;    // first value column of the CTA
  bool map;  // the chunks' map instead: from the identity, with v = 0
  // Where the first state comes from and the last one goes; see scan.cuts.h for places.
  bool loads;   // an initial state
  bool handed;  // the state at the place before
  bool leaves;  // at its place
  bool last;    // no chunk behind it
  int64_t place;
  LINATTN_HOST_DEVICE int rows(int chunk) const {
    const int64_t left = range.length() - static_cast<int64_t>(chunk) * kChunk;
    return left < kChunk ? static_cast<int>(left) : kChunk;
  }
};

// What a chunk does to the state besides its update. A state warpgroup holds less than the state by
// a number, the product of decays that have gathered; when that is small it multiplies the state.
struct Gathered {
  float times;   // what the state is multiplied by in this chunk; mostly 1
  float before;  // the number in front of the chunk,
  float after;   // and behind it
};

// Less than this is not gathered. What a warpgroup holds is larger than the state by the inverse,
// which fp16 must bear.
inline constexpr float kLeastGathered = 0x1p-20f, kLeastGatheredF16 = 0.25f;

}  // namespace linattn::cuda::sm90
