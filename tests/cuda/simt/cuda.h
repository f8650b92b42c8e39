// Host stand-in for the driver's header: what kernels know of tensor maps. Same size and alignment.
#pragma once

#include <bit>
#include <cstdint>
#include <cstring>

struct alignas(64) CUtensorMap {
  uint64_t opaque[16];
};

namespace simt {

// [batch, tokens, heads, columns] of 16-bit elements, copied in boxes of tokens by 64 columns.
struct Map {
  const uint16_t* data;
  int64_t tokens, columns, batch_stride, token_stride, head_stride;
  int box_tokens;
};
static_assert(sizeof(Map) <= sizeof(CUtensorMap));

inline const Map& map_of(const CUtensorMap& map) { return *reinterpret_cast<const Map*>(&map); }
inline CUtensorMap make_map(const Map& map) {
  CUtensorMap made{};
  std::memcpy(&made, &map, sizeof(map));
  return made;
}

}  // namespace simt
