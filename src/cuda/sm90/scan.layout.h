// Shared memory of the scan, for either kind of gates.
#pragma once

#include <type_traits>

#include "cuda/sm90/channel.shared.h"

namespace linattn::cuda::sm90 {

constexpr int aligned_tile(int bytes) {
  return (bytes + tile::kAlignment - 1) / tile::kAlignment * tile::kAlignment;
}

// Scan: a warpgroup whose warps load, gather decays and store o (a warp for each slab), and one for
// each slab of 64 value columns that carries its part of the state. Both slabs read k, q and the
// record of one stage: two CTAs of one slab each would fetch them twice, and L2's rate is what the
// scan meets first.
template <bool kChannel>
struct Layout {
  using Record = std::conditional_t<kChannel, ChannelRecord, sm90::Record>;
  static constexpr int kSlabs = 2, kColumns = kSlabs * kSlab, kStages = kChannel ? 5 : 6;
  static constexpr int kThreads = (1 + kSlabs) * kWarpgroup;
  static constexpr int kLoadRegisters = 56, kStateRegisters = 224;  // of a thread; 168 on average

  // What of a record is read, in multiples of 16 bytes.
  static constexpr int kRecordRead = (static_cast<int>(offsetof(Record, bound)) + 15) / 16 * 16;
  // Of gates a channel the record has the keys and queries, and other keys for the update.
  static constexpr int kTiles = kChannel ? 0 : RowsTile::kTileBytes;
  static constexpr int kKeys = 0;
  static constexpr int kUpdate = kChannel ? static_cast<int>(offsetof(ChannelRecord, update)) : 0;
  using UpdateTile = std::conditional_t<kChannel, KeysTile, RowsTile>;
  static constexpr int kV = kChannel ? aligned_tile(kRecordRead) : kTiles;
  static constexpr int kRecord = kChannel ? 0 : kV + kSlabs * ValuesTile::kTileBytes;
  static constexpr int kT = kRecord + static_cast<int>(offsetof(Record, t));
  static constexpr int kP = kRecord + static_cast<int>(offsetof(Record, p));
  static constexpr int kGathered = kRecord + kRecordRead;
  static constexpr int kStageBytes =
      kChannel ? kV + kSlabs * ValuesTile::kTileBytes
               : aligned_tile(kGathered + static_cast<int>(sizeof(Gathered)));

  static constexpr int kChainAt = kStages * kStageBytes;
  static constexpr int kBarriersAt = kChainAt + (static_cast<int>(sizeof(Chain)) + 15) / 16 * 16;
  // Barriers, one for each stage: its tiles have come; its factors are scaled by gathered decays
  // (of which gates a channel have none); a slab of o is written; all of it is stored. And one for
  // the chunk that is not whole.
  static constexpr int kFull = 0, kReady = kStages, kWritten = 2 * kStages;
  static constexpr int kEmpty = kWritten + kSlabs * kStages, kLanded = kEmpty + kStages;
  static constexpr int kBarriers = kLanded + 1;
  static constexpr int kBytes = kBarriersAt + kBarriers * 8;
  // The start of dynamic shared memory is aligned by hand.
  static constexpr int kSharedBytes = kBytes + tile::kAlignment;
  static_assert(kSharedBytes + 1024 <= 228 * 1024, "an SM has 228 KB");
  static_assert(kSharedBytes > 114 * 1024, "a CTA has an SM for itself");
};

}  // namespace linattn::cuda::sm90
