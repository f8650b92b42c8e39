// The table of kernels of one state layout; a file each, because nvcc compiles a file on one core.
#pragma once

#include <utility>

#include "cuda/portable/decode.cuh"
#include "cuda/portable/decode.kernels.h"

namespace linattn::cuda {

template <int kVariant, int kShape>
constexpr const void* decode_instance() {
  if constexpr (decode_is_compiled(decode_variant(kVariant), kShape))
    return reinterpret_cast<const void*>(&recurrent_forward_portable<kVariant, kShape>);
  else
    return nullptr;
}

template <bool kVFirst, int... kPairs>
const void* find_decode_instance(int variant, int shape, std::integer_sequence<int, kPairs...>) {
  const void* found = nullptr;
  const auto consider = [&]<int kVariant, int kShape>() {
    if constexpr (decode_variant(kVariant).v_first == kVFirst)
      if (variant == kVariant && shape == kShape) found = decode_instance<kVariant, kShape>();
  };
  (consider.template operator()<kPairs / kDecodeShapeCount, kPairs % kDecodeShapeCount>(), ...);
  return found;
}

using AllDecodePairs = std::make_integer_sequence<int, kDecodeVariants * kDecodeShapeCount>;

}  // namespace linattn::cuda
