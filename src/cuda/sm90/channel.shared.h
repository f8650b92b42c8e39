// Record and shared memory of the Hopper chunk kernels for gates that are one number a key channel.
#pragma once

#include "cuda/sm90/scan.shared.h"

namespace linattn::cuda::sm90 {

using KeysTile = tile::Tile<kChunk, kDim, 2>;  // [token, channel]

// What preparation hands to the scan, one chunk of one value head, in the scan's memory image. With
// G the cumulated gates of a channel and G_C those of the whole chunk:
struct alignas(128) ChannelRecord {
  char rows[RowsTile::kTileBytes];    // k exp(G) above q exp(G): what reads the state
  char update[KeysTile::kTileBytes];  // k exp(G_C - G): what is added to it
  float t[kChunk * kChunk];           // (I + A)^-1 diag(beta) as SquareTile; absent when additive
  float p[kChunk * kChunk];  // tril(Q~ K^T), SquareTile; times kCut, for the delta update kCut^2
  float decay[kDim];         // exp(G_C)
  // Per-token factors, applied to accumulators.
  float read_k[kChunk];   // |k|^-1
  float read_q[kChunk];   // scale |q|^-1
  float write_k[kChunk];  // |k|^-1
  // Of the spectral norm of the map from the state before the chunk to the one behind it: the
  // product over tokens of max_d exp(g_d) max(1, |1 - beta |k|^2|).
  float bound;
};

// Shared memory of a CTA of the preparation, which makes one record.
struct ChannelScratch {
  // The record's image. Before: rows has k and q as they are, then those of the anchored frame; g
  // lies from `update` on, 16 or 32 bits a channel; then t and p have the keys of the anchored
  // frame until A and P are there.
  ChannelRecord record;
  float sums[kChunk / 8][kDim];  // log2 decays of eight tokens
  uint16_t power[kDim];          // 2^r, bf16
  float beta[kChunk];
  // |k|^2, |q|^2, and q k, which is on the diagonal of P whatever the gates.
  float squares_k[kChunk], squares_q[kChunk], products[kChunk];
  float row_a[kChunk], row_p[kChunk];  // of the rows of A, P
  float lowest[kChunk / 8];            // sums over eight tokens of the lowest -log2 decay
  alignas(8) char landed[8];           // barrier
  LINATTN_HOST_DEVICE char* gates() { return record.update; }
  LINATTN_HOST_DEVICE char* keys() { return reinterpret_cast<char*>(record.t); }
};
static_assert(offsetof(ChannelRecord, update) % tile::kAlignment == 0 &&
              offsetof(ChannelRecord, t) % tile::kAlignment == 0);

inline constexpr int kPrepareChannelThreads = 128;
inline constexpr int kPrepareChannelCtas = 6;  // an SM
inline constexpr int kPrepareChannelBytes = static_cast<int>(sizeof(ChannelScratch));
static_assert(kPrepareChannelCtas * (kPrepareChannelBytes + 1024) <= 228 * 1024);

}  // namespace linattn::cuda::sm90
