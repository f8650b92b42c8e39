// Everything one target compiles. A file of targets/ defines LINATTN_TARGET (a namespace) and
// LINATTN_TARGET_NAME and includes this.
#include <bit>
#include <cstdint>
#include <experimental/simd>
#include <utility>
#if defined(__x86_64__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

#include "cpu/gradient_kernels.h"
#include "cpu/kernels.h"

#if defined(__clang__)
#define LINATTN_UNROLL _Pragma("clang loop unroll(full)")
#else
#define LINATTN_UNROLL _Pragma("GCC unroll 16")
#endif

namespace linattn::cpu::LINATTN_TARGET {
// Internal linkage: no symbol that a linker could share between targets.
namespace {
// clang-format off: later parts use earlier ones
#include "cpu/simd/vector.inl"
#include "cpu/simd/math.inl"
#include "cpu/simd/convert.inl"
#include "cpu/simd/ahead.inl"
#include "cpu/simd/gemm.inl"
#include "cpu/simd/precise.inl"
#include "cpu/simd/records.inl"
#include "cpu/simd/chunk_step.inl"
#include "cpu/simd/tile_step.inl"
#include "cpu/simd/tile_record.inl"
#include "cpu/simd/decode.inl"
#include "cpu/simd/gradient.inl"
// clang-format on

constexpr GradientKernels gradient_table = {
    .precise_gemm = precise_gemm,
    .prefix_rows = prefix_rows,
    .suffix_rows = suffix_rows,
    .prefix_gradient = prefix_gradient,
    .suffix_gradient = suffix_gradient,
    .pair_block = pair_block,
    .pair_gradient = pair_gradient,
    .gate_gradient = gate_gradient,
    .row_dots = row_dots,
    .scaled_copy = scaled_copy,
    .norm_gradient = norm_gradient,
};
}  // namespace

extern const Kernels table;
const Kernels table = {
    .name = LINATTN_TARGET_NAME,
    .load_rows = load_rows,
    .store_rows = store_rows,
    .transpose = transpose,
    .gemm = gemm,
    .lower_product = lower_product,
    .upper_product = upper_product,
    .lower_solve = lower_solve,
    .upper_solve = upper_solve,
    .exp = exp_array,
    .sigmoid = sigmoid_array,
    .softplus = softplus_array,
    .gate_softplus = gate_softplus,
    .gate_bounded = gate_bounded,
    .inverse_norms = inverse_norms,
    .scale_rows = scale_rows,
    .channel_record = channel_record,
    .head_record = head_record,
    .chunk_step = chunk_step,
#if defined(__AMX_BF16__)
    .chunk_step_tiles = chunk_step_tiles,
    .head_record_tiles = head_record_tiles,
#endif
    .decode_step = decode_step,
    .gradient = &gradient_table,
};
}  // namespace linattn::cpu::LINATTN_TARGET
