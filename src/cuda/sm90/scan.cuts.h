// How sequences are cut, so that many CTAs carry one of them. A piece has two segments, and a
// segment starts from
//   the sequence's start, or a zero state where what lies before is forgotten (`known`), or
//   the state behind the segment before it (`handed`), which is M S + N: M and N of the segments
//   before come from CTAs of their own, which need not know S.
// What a segment starts from depends on what lies before it alone, so that no later token changes
// an earlier output; where cuts lie, on lengths alone.
#pragma once

#include <cstdint>

#include "cuda/sm90/scan.layout.h"

namespace linattn::cuda::sm90 {

// Work of one CTA.
enum class Task : int32_t {
  outputs,  // a segment's, or two that run as one
  rest,     // N of a segment: from zero
  map,      // M of a segment: from the identity, with v = 0
  merge,    // states behind a run of segments, one after the other: S = M S + N; of 64 columns
};
static_assert(Layout<false>::kColumns == kDim && Layout<true>::kColumns == kDim,
              "a CTA has all columns");

struct alignas(16) Work {
  int32_t n, hv;
  Task task;
  int32_t slab;  // of a merge
  // Chunks; those from `begin` to `own` bring the state up to date. Of a merge: segments.
  int32_t begin, own, end;
  int32_t place;  // of the (last) segment; of a merge, of the segment before the run
  bool handed;    // starts from the state at the place before
  bool leaves;    // leaves its last state at its place
};
static_assert(sizeof(Work) == 48);

// The list of work is in sections; a CTA waits for work of earlier sections alone, so the CTAs that
// run can always go on: the hardware starts them in order of their index.
inline constexpr int kBuild = 0;  // maps, rests, and known segments that leave a state
inline constexpr int kPiece = 1;  // other known segments
inline constexpr int kMerge = 2;
inline constexpr int kShort = 3;   // sequences of one piece
inline constexpr int kHanded = 4;  // segments that start from a state; the first quarters first
inline constexpr int kQuarters = 4;
inline constexpr int kSections = kHanded + kQuarters;

// M^T, 64 columns of M as rows: bf16 numbers and what they leave out, as operands of the merge.
using MapTile = tile::Tile<kSlab, kDim, 2>;
inline constexpr int kSlabs = Layout<false>::kSlabs;  // of M's columns as of V's
inline constexpr int kMapTiles = 2 * kSlabs;
inline constexpr int kMapBytes = kMapTiles * MapTile::kTileBytes;
inline constexpr int kStateFloats = kSlab * kDim;  // one slab, as the accumulators have it

// Of a merge, in the stages' place: M and N of this many segments.
inline constexpr int kMergeStages = 2;
inline constexpr int kRestAt = kMergeStages * kMapBytes;
inline constexpr int kMergeBytes = kRestAt + kMergeStages * kStateFloats * 4;
static_assert(kMergeBytes <= Layout<false>::kChainAt && kMergeBytes <= Layout<true>::kChainAt);

// Of a place: of one segment of one value head.
struct Cuts {
  Work* work = nullptr;  // null: no cuts, a CTA for each slab of a sequence
  uint32_t grid = 0;     // CTAs of the list
  uint32_t skipped = 0;  // CTAs of whole sequences that the list stands for
  uint32_t* counts;      // [kSections], of the list
  uint32_t first[kSections];
  float* bounds;    // [HV, slots], of the records
  int64_t slots;    // of chunks
  int32_t piece;    // chunks of a piece, at least; a sequence has as many as fit
  int32_t reach;    // chunks that are worth going back over instead of making maps
  bool joined;      // both segments of a piece as one where the second is known
  uint8_t* handed;  // [places]: what the segment starts from
  uint32_t* built;  // [places]: slabs of M and N that are there
  uint32_t* ready;  // [places, slabs]: whether the state behind the segment is there
  float* states;    // [places, slabs, kStateFloats]: N, then the state behind the segment
  char* maps;       // [places, kMapBytes]; of the additive update [places, kDim]
};

inline constexpr int kCutThreads = 256;

// CTAs that make M and N of one segment. The additive update's M is diagonal.
LINATTN_HOST_DEVICE constexpr int builders(bool delta) { return delta ? 2 : 1; }

LINATTN_HOST_DEVICE inline int pieces_of(const Cuts& cuts, int chunks) {
  return chunks < cuts.piece ? 1 : chunks / cuts.piece;
}

}  // namespace linattn::cuda::sm90
