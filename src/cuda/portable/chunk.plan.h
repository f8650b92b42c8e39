// What every chunk implementation asks of a problem on the host.
#pragma once

#include <string>

#include "recurrence/problem.h"

namespace linattn::cuda {

inline constexpr int64_t kLargestGrid = (1ll << 31) - 1;

int64_t chunks_a_sequence(const Problem& problem);  // without cu_seqlens

// Chunks of all sequences; where lengths are known on the device alone, a bound.
int64_t chunk_slots(const Problem& problem);

// Why a row of q, k, v, o or of channel gates is not contiguous; empty: all are.
std::string scattered_channels(const Problem& problem);

// Whether rows start at multiples of `elements` elements (a power of two), and of its bytes.
bool rows_aligned(const TokenView& view, const void* data, const Problem& problem,
                  int64_t elements);

}  // namespace linattn::cuda
