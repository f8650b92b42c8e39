// Decode's reads and writes: elements whose type is known at run time, four of a token or a whole
// access of a state, kept as they lie in memory until they are used.
#pragma once

#include <cstdint>

#include "cuda/ptx/convert.cuh"
#include "linattn/linattn.h"

namespace linattn::cuda::decode {

__device__ __forceinline__ int64_t load_index(const char* at, uint32_t is_64) {
  return is_64 ? *reinterpret_cast<const int64_t*>(at) : *reinterpret_cast<const int32_t*>(at);
}

__device__ __forceinline__ int size_of(int type) { return type == LINATTN_F32 ? 4 : 2; }

__device__ __forceinline__ uint32_t load_bits(const char* at, int type) {
  return type == LINATTN_F32 ? *reinterpret_cast<const uint32_t*>(at)
                             : *reinterpret_cast<const uint16_t*>(at);
}

__device__ __forceinline__ void unpack_pair(uint32_t pair, int type, float& low, float& high) {
  if (type == LINATTN_BF16)
    ptx::unpack_bf16(pair, low, high);
  else
    ptx::unpack_f16(pair, low, high);
}

__device__ __forceinline__ uint32_t pack_pair(float low, float high, int type) {
  return type == LINATTN_BF16 ? ptx::pack_bf16(low, high) : ptx::pack_f16(low, high);
}

__device__ __forceinline__ float from_bits(uint32_t bits, int type) {
  if (type == LINATTN_F32) return __uint_as_float(bits);
  float low, high;
  unpack_pair(bits, type, low, high);
  return low;
}

__device__ __forceinline__ void store_one(char* at, int type, float x) {
  if (type == LINATTN_F32)
    *reinterpret_cast<float*>(at) = x;
  else
    *reinterpret_cast<uint16_t*>(at) = static_cast<uint16_t>(pack_pair(x, 0.0f, type));
}

// Four neighbours as loaded: fp32 in four words, 16-bit types in two. The scalar kernels hold fp32
// whatever the type.
struct Four {
  uint32_t word[4];
};

// Of the four the first `valid` exist; the others read as zero. With kVectors all or none of them
// exist and the address is a multiple of four elements.
template <bool kVectors>
__device__ __forceinline__ Four load_four(const char* at, int type, int valid) {
  Four four = {};
  if constexpr (kVectors) {
    if (valid <= 0) return four;
    if (type == LINATTN_F32) {
      const uint4 bits = *reinterpret_cast<const uint4*>(at);
      four = {bits.x, bits.y, bits.z, bits.w};
    } else {
      const uint2 bits = *reinterpret_cast<const uint2*>(at);
      four.word[0] = bits.x, four.word[1] = bits.y;
    }
  } else {
#pragma unroll
    for (int e = 0; e < 4; ++e)
      if (e < valid)
        four.word[e] = __float_as_uint(from_bits(load_bits(at + e * size_of(type), type), type));
  }
  return four;
}

template <bool kVectors>
__device__ __forceinline__ void unpack_four(const Four& four, int type, float* x) {
  if (!kVectors || type == LINATTN_F32) {
#pragma unroll
    for (int e = 0; e < 4; ++e) x[e] = __uint_as_float(four.word[e]);
  } else if (type == LINATTN_BF16) {
    ptx::unpack_bf16(four.word[0], x[0], x[1]);
    ptx::unpack_bf16(four.word[1], x[2], x[3]);
  } else {
    ptx::unpack_f16(four.word[0], x[0], x[1]);
    ptx::unpack_f16(four.word[1], x[2], x[3]);
  }
}

// One access of a state: kVector elements, masked as load_four.
template <bool kVectors, int kVector>
__device__ __forceinline__ void load_state(const char* at, int type, int valid, float* x) {
  if constexpr (kVector == 8) {
    const uint4 bits = *reinterpret_cast<const uint4*>(at);
    unpack_pair(bits.x, type, x[0], x[1]);
    unpack_pair(bits.y, type, x[2], x[3]);
    unpack_pair(bits.z, type, x[4], x[5]);
    unpack_pair(bits.w, type, x[6], x[7]);
  } else {
    unpack_four<kVectors>(load_four<kVectors>(at, type, valid), type, x);
  }
}

template <bool kVectors, int kVector>
__device__ __forceinline__ void store_state(char* at, int type, int valid, const float* x) {
  if constexpr (kVector == 8) {
    *reinterpret_cast<uint4*>(at) =
        make_uint4(pack_pair(x[0], x[1], type), pack_pair(x[2], x[3], type),
                   pack_pair(x[4], x[5], type), pack_pair(x[6], x[7], type));
  } else if constexpr (kVectors) {
    if (valid <= 0) return;
    if (type == LINATTN_F32)
      *reinterpret_cast<float4*>(at) = make_float4(x[0], x[1], x[2], x[3]);
    else
      *reinterpret_cast<uint2*>(at) =
          make_uint2(pack_pair(x[0], x[1], type), pack_pair(x[2], x[3], type));
  } else {
#pragma unroll
    for (int e = 0; e < 4; ++e)
      if (e < valid) store_one(at + e * size_of(type), type, x[e]);
  }
}

// Shared memory.
__device__ __forceinline__ void put_four(float* to, const float* x) {
  *reinterpret_cast<float4*>(to) = make_float4(x[0], x[1], x[2], x[3]);
}

__device__ __forceinline__ void get_four(const float* from, float* x) {
  const float4 four = *reinterpret_cast<const float4*>(from);
  x[0] = four.x, x[1] = four.y, x[2] = four.z, x[3] = four.w;
}

}  // namespace linattn::cuda::decode
