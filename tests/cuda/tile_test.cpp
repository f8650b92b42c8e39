// The arithmetic of shared-memory tiles and operand descriptors, on the host.
#include "cuda/tile/tile.h"

#include <cstddef>
#include <set>

#include "check.h"
#include "cuda/sm90/scan.layout.h"

namespace {

using namespace linattn::cuda;

// Every element has a place of its own inside the tile, and 16 bytes of a row stay together.
template <class T, int kRows, int kColumns, int kBytes>
void places_are_distinct() {
  std::set<int> seen;
  for (int row = 0; row < kRows; ++row)
    for (int column = 0; column < kColumns; ++column) {
      const int at = T::at(row, column);
      CHECK(at >= 0 && at + kBytes <= T::kTileBytes && at % kBytes == 0);
      CHECK(seen.insert(at).second);
      if (column % T::kUnit != 0) CHECK(at == T::at(row, column - 1) + kBytes);
    }
  CHECK(static_cast<int>(seen.size()) * kBytes == T::kTileBytes);
}

// The hardware's 128-byte swizzle: bits 4 to 6 of an address meet bits 7 to 9.
void swizzle_is_the_hardware_s() {
  using T = tile::Tile<64, 64, 2>;
  for (int row = 0; row < 64; ++row)
    for (int column = 0; column < 64; ++column) {
      const int plain = row * 128 + column * 2;
      CHECK(T::at(row, column) == (plain ^ ((plain >> 7 & 7) << 4)));
    }
}

// A warp that reads the same unit of eight neighbouring rows meets every bank once.
void eight_rows_meet_no_bank_twice() {
  for (int unit = 0; unit < 8; ++unit) {
    std::set<int> banks;
    for (int row = 8; row < 16; ++row) banks.insert(tile::swizzled(row, unit) / 16 % 8);
    CHECK(banks.size() == 8);
  }
}

void descriptor_fields() {
  const uint64_t d = tile::descriptor(0x12340, 8192, 1024);
  CHECK((d & 0x3fff) == 0x1234);
  CHECK((d >> 16 & 0x3fff) == 512);
  CHECK((d >> 32 & 0x3fff) == 64);
  CHECK(d >> 62 == 1);
}

// Along k an operand goes on by 32 bytes inside a panel, then to the next panel; along rows of k by
// 16 rows.
void operands_step() {
  using T = sm90::RowsTile;
  const auto bytes = [](uint64_t d) { return static_cast<int>(d & 0x3fff) * 16; };
  for (int step = 0; step < sm90::kDim / 16; ++step) {
    CHECK(bytes(tile::k_major<T>(4096, 0, step)) ==
          4096 + step / 4 * T::kPanelBytes + step % 4 * 32);
    CHECK(bytes(tile::k_major<T>(4096, 32, step)) ==
          bytes(tile::k_major<T>(4096, 0, step)) + 32 * 128);
  }
  CHECK(bytes(tile::mn_major<T>(4096, 1)) == 4096 + 16 * 128);
}

void square_columns_are_a_permutation_inside_eights() {
  std::set<int> seen;
  for (int j = 0; j < linattn::cuda::kChunk; ++j) {
    CHECK(sm90::square_column(j) / 8 == j / 8);
    CHECK(seen.insert(sm90::square_column(j)).second);
  }
  // Thread t of a quad holds columns 2t and 2t + 1, and an A operand of tf32 wants t and t + 4.
  for (int t = 0; t < 4; ++t) {
    CHECK(sm90::square_column(2 * t) == t);
    CHECK(sm90::square_column(2 * t + 1) == t + 4);
  }
}

// What the copy engine and the tensor cores need of the layouts.
template <bool kChannel>
void stages_are_aligned() {
  using L = sm90::Layout<kChannel>;
  CHECK(L::kStageBytes % tile::kAlignment == 0 && L::kV % tile::kAlignment == 0);
  CHECK(L::kRecord % tile::kAlignment == 0 && sizeof(typename L::Record) % 16 == 0);
  CHECK(L::kUpdate % tile::kAlignment == 0);
  CHECK(L::kT % tile::kAlignment == 0 && L::kP % tile::kAlignment == 0);
  CHECK(L::kBarriersAt % 8 == 0 && L::kChainAt % 16 == 0);
}

}  // namespace

int main() {
  places_are_distinct<sm90::RowsTile, 64, 128, 2>();
  places_are_distinct<sm90::ValuesTile, 32, 64, 2>();
  places_are_distinct<sm90::SquareTile, 32, 32, 4>();
  places_are_distinct<tile::Tile<64, 64, 4>, 64, 64, 4>();
  swizzle_is_the_hardware_s();
  eight_rows_meet_no_bank_twice();
  descriptor_fields();
  operands_step();
  square_columns_are_a_permutation_inside_eights();
  stages_are_aligned<false>();
  stages_are_aligned<true>();
  return check::finish();
}
