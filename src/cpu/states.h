// States between the caller's memory (any type, K-first or V-first) and fp32 scratch [K, ld].
#pragma once

#include "cpu/inputs.h"

namespace linattn::cpu {

// A state in memory: columns [column, column + columns) of V of one value head. Null data reads as
// zeros and takes nothing.
struct StatePlace {
  const StateView* view = nullptr;
  void* data = nullptr;  // of the head's [K,V] block
  int64_t column = 0, columns = 0;
};

// `n` is a sequence, slot or batch row, `row` that of intermediate states.
StatePlace state_place(const StateView& view, const void* data, int64_t n, int64_t row,
                       int64_t head, int64_t column, int64_t columns);

// Floats of scratch for a V-first state.
constexpr int64_t state_work(int64_t dim_k) { return kLanes * leading(dim_k); }

// Moves a state that no token touches: every bit of it where the types are the same.
void pass_state(const StatePlace& from, const StatePlace& to, int64_t dim_k, float* s, int64_t ld,
                float* work);

void load_state(const StatePlace& place, int64_t dim_k, float* s, int64_t ld, float* work);
void store_state(const StatePlace& place, int64_t dim_k, const float* s, int64_t ld, float* work);

}  // namespace linattn::cpu
