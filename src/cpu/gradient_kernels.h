// Building blocks that the backward pass adds to kernels.h, under the same conventions.
//
// Decays enter as products of factors, never as exp of a difference or as a quotient: factors lie
// in [0, 1], so a decay of 1e-30 or of exactly 0 is as good as any other. For the same reason the
// gradient of a log decay is gathered from the terms whose path crosses that token, not as the
// difference of two running sums that hold all terms.
#pragma once

#include <cstdint>

#include "cpu/kernels.h"

namespace linattn::cpu {

inline constexpr int64_t kPairRows = 8;  // most rows of a pair block

// Rows as seen from the left edge: out_i = x_i (.) a_0 .. a_i, for one or two x (the second null).
struct PrefixRows {
  int64_t rows = 0, columns = 0, ld = 0;
  const float* a = nullptr;
  const float* x[2] = {};
  float* out[2] = {};
};

// Rows as seen from the right edge: out_i = x_i (.) a_{i+1} .. a_{rows-1}.
struct SuffixRows {
  int64_t rows = 0, columns = 0, ld = 0;
  const float *a = nullptr, *x = nullptr;
  float* out = nullptr;
  float* total = nullptr;  // [columns], product of all factors; may be null
};

// From the gradient dy of prefix_rows' outputs: dx_i (+)= dy_i (.) a_0 .. a_i; and the gradient of
// log a_i gets sum_{t >= i} x_t dx_t, the terms whose path crosses row i.
struct PrefixGradient {
  int64_t rows = 0, columns = 0, ld = 0;
  const float* a = nullptr;
  const float* x[2] = {};
  const float* dy[2] = {};
  float* dx[2] = {};      // may be dy with `set`
  float* dlog = nullptr;  // may be null
  bool set = false;       // dx and dlog are written, not added to
};

// The same for suffix_rows: log a_i gets sum_{t < i} x_t dx_t, and `through` [columns] if given.
struct SuffixGradient {
  int64_t rows = 0, columns = 0, ld = 0;
  const float *a = nullptr, *x = nullptr, *dy = nullptr, *through = nullptr;
  float *dx = nullptr, *dlog = nullptr;  // added to; dlog may be null
};

// Products inside a block of at most kPairRows rows:
//   out_s[i][j] = sum_c x_s[i] k[j] a_{j+1} .. a_i,  j <= i for s = 0, j < i for s = 1,
// the latter summed in double.
struct PairBlock {
  int64_t rows = 0, columns = 0, ld = 0;
  const float *a = nullptr, *k = nullptr;
  const float* x[2] = {};  // either may be null
  float* out[2] = {};
  int64_t ld_out = 0;
};

// From dp (gradient of out_0, x_0 = q) and da (of out_1, x_1 = k; may be null): adds to dq, dk,
// dlog.
struct PairGradient {
  int64_t rows = 0, columns = 0, ld = 0;
  const float *a = nullptr, *q = nullptr, *k = nullptr;
  const float *dp = nullptr, *da = nullptr;
  int64_t ld_p = 0;
  float *dq = nullptr, *dk = nullptr, *dlog = nullptr;  // dlog may be null
};

// Gradient through the raw gate forms. dlog [rows, columns] becomes the gradient of the raw values
// x; a decay's zero gradient stays zero whatever the derivative. Sums over rows are added to dbias
// [columns]; the sum of what reaches A_log is returned.
struct GateGradient {
  int64_t rows = 0, columns = 0, ld = 0;
  const float* x = nullptr;           // raw, without bias
  const float* bias = nullptr;        // [columns] or null
  float factor = 1, lower_bound = 0;  // lower_bound 0: softplus form
  float* dlog = nullptr;
  float* dbias = nullptr;
};

struct GradientKernels {
  // C = A B with sums in double, for products of keys with keys; inner dimension at most 256,
  // a_col = 1.
  void (*precise_gemm)(const Gemm&);
  void (*prefix_rows)(const PrefixRows&);
  void (*suffix_rows)(const SuffixRows&);
  void (*prefix_gradient)(const PrefixGradient&);
  void (*suffix_gradient)(const SuffixGradient&);
  void (*pair_block)(const PairBlock&);
  void (*pair_gradient)(const PairGradient&);
  float (*gate_gradient)(const GateGradient&);

  // All columns up to padded(columns) are written from here on; sums take whole vectors of
  // `columns`, so what a product left beyond them may be anything.
  // out[i] = sum_c x_ic y_ic
  void (*row_dots)(const float* x, const float* y, int64_t ld, int64_t rows, int64_t columns,
                   float* out);
  // out_i = scale[i] factor x_i (+ out_i with `add`); scale may be null
  void (*scaled_copy)(const float* x, int64_t ld, int64_t rows, int64_t columns, const float* scale,
                      float factor, float* out, int64_t ld_out, bool add);
  // dy of y = x r, r = 1 / sqrt(x.x + 1e-6), becomes r (dy - y (y.dy)); r is inverse_norms[i].
  void (*norm_gradient)(const float* x, const float* inverse_norms, int64_t ld, int64_t rows,
                        int64_t columns, float* dy);
};

}  // namespace linattn::cpu
