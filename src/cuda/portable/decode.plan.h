// What decode does on the host, without the CUDA runtime: which problems it takes, which kernel,
// and the kernel's parameters. Tests run it on machines without CUDA.
#pragma once

#include <string>

#include "cuda/portable/decode.config.h"
#include "cuda/portable/decode.params.h"
#include "recurrence/implementation.h"

namespace linattn::cuda {

struct DecodeChoice {
  DecodeVariant variant;
  int shape;
  int64_t teams;  // with work
  int64_t grid;
};

std::string decode_reject(const Problem& problem, const DeviceFacts& facts);

// Whether accesses of four elements are possible, as far as sizes and strides say.
bool decode_strides_fit_vectors(const Problem& problem);
// Likewise for the addresses of one call.
bool decode_pointers_fit_vectors(const Problem& problem, const linattn_args& args);

DecodeChoice choose_decode(const Problem& problem, bool vectors);

DecodeParams decode_params(const Problem& problem, const linattn_args& args,
                           const DecodeChoice& choice);

}  // namespace linattn::cuda
