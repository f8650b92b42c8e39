// Zeros where a forward pass owns memory but computes nothing.
#pragma once

#include "recurrence/problem.h"
#include "recurrence/sequences.h"

namespace linattn::cpu {

// Tokens [begin, end) of one head.
void zero_tokens(const TokenView& view, void* data, int64_t batch, int64_t begin, int64_t end,
                 int64_t head, int64_t dim);

// Tokens past the last offset of a varlen call, every head.
void zero_unowned_tokens(const Problem& p, const linattn_args& args, const TokenView& view,
                         void* data, int64_t heads, int64_t dim);

// Rows [begin, end) of intermediate states of one batch row and head.
void zero_intermediate_rows(const Problem& p, const linattn_args& args, int64_t batch,
                            int64_t begin, int64_t end, int64_t head);

}  // namespace linattn::cpu
