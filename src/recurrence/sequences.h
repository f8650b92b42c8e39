// Token ranges of the sequences of a problem and the slots they use, read where the tensors are:
// on the host for CPU tensors, in kernels for CUDA tensors.
#pragma once

#include <cstdint>

#include "recurrence/problem.h"

namespace linattn {

LINATTN_HOST_DEVICE inline int64_t read_index(Type type, const void* data, int64_t offset) {
  return type == Type::i32 ? static_cast<const int32_t*>(data)[offset]
                           : static_cast<const int64_t*>(data)[offset];
}

struct TokenRange {
  int64_t batch;       // index of the B axis
  int64_t begin, end;  // tokens on the T axis
  LINATTN_HOST_DEVICE int64_t length() const { return end - begin; }
};

LINATTN_HOST_DEVICE inline TokenRange token_range(const Problem& p, const void* cu_seqlens,
                                                  int64_t sequence) {
  if (!p.varlen()) return {sequence, 0, p.num_tokens};
  return {0, read_index(p.cu_seqlens.type, cu_seqlens, sequence * p.cu_seqlens.n),
          read_index(p.cu_seqlens.type, cu_seqlens, (sequence + 1) * p.cu_seqlens.n)};
}

// First row of intermediate_states of a sequence: (row on the r axis, index of the B axis).
// Rows of a varlen call are numbered sequence by sequence; an empty sequence has none.
LINATTN_HOST_DEVICE inline int64_t intermediate_row_begin(const Problem& p, const void* cu_seqlens,
                                                          int64_t sequence) {
  if (!p.varlen()) return 0;
  int64_t row = 0;
  for (int64_t n = 0; n < sequence; ++n)
    row += (token_range(p, cu_seqlens, n).length() + p.state_every - 1) / p.state_every;
  return row;
}

// Which slots one sequence reads and writes. A row is dead when its read index is below 0, at or
// past the pool's end, or the caller's null index, or when its accepted count is outside
// [1, columns]: nothing is read, nothing is written, its outputs are zero.
LINATTN_HOST_DEVICE inline bool is_dead_index(const Problem& p, int64_t index) {
  return index < 0 || index >= p.num_slots || (p.has_null_index && index == p.null_index);
}

LINATTN_HOST_DEVICE inline int64_t first_column(const Problem& p, const void* num_accepted_tokens,
                                                int64_t sequence) {
  if (!p.num_accepted_tokens.present()) return 0;
  return read_index(p.num_accepted_tokens.type, num_accepted_tokens,
                    sequence * p.num_accepted_tokens.n) -
         1;
}

// Slot the sequence starts from, or -1 for a dead row.
LINATTN_HOST_DEVICE inline int64_t start_slot(const Problem& p, const linattn_args& args,
                                              int64_t sequence) {
  const int64_t column = first_column(p, args.num_accepted_tokens, sequence);
  if (column < 0 || (p.state_columns > 0 && column >= p.state_columns)) return -1;
  const int64_t index = read_index(p.state_indices.type, args.state_indices,
                                   sequence * p.state_indices.n + column * p.state_indices.c);
  return is_dead_index(p, index) ? -1 : index;
}

// Slot that takes the state after token `j` of the sequence (2-D indices) or after its last token
// (1-D indices, j ignored); -1: that state is not written.
LINATTN_HOST_DEVICE inline int64_t target_slot(const Problem& p, const linattn_args& args,
                                               int64_t sequence, int64_t j) {
  const bool separate = p.output_state_indices.present();
  const IndexView& view = separate ? p.output_state_indices : p.state_indices;
  const void* data = separate ? args.output_state_indices : args.state_indices;
  const int64_t column = p.state_columns > 0 ? j : 0;
  const int64_t index = read_index(view.type, data, sequence * view.n + column * view.c);
  return is_dead_index(p, index) ? -1 : index;
}

LINATTN_HOST_DEVICE inline bool starts_from_state(const Problem& p, const linattn_args& args,
                                                  int64_t sequence) {
  if (!p.initial_state.present()) return false;
  return !p.has_initial_state.present() ||
         static_cast<const uint8_t*>(args.has_initial_state)[sequence * p.has_initial_state.n] != 0;
}

}  // namespace linattn
