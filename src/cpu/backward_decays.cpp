// Decays inside a chunk. Head gates: one number for each pair of tokens. Channel gates: a vector
// for each pair, so the chunk is halved down to blocks of kPairRows tokens, and the products
// of a right and a left half factor at their border.
#include <algorithm>
#include <cstring>

#include "cpu/backward_chunk.h"

namespace linattn::cpu {

void HeadBackward::apply_decays(bool with_q) {
  const float* k = k_rows();
  float* k_in = s_.qk_in + n_ * z_.ld_k;
  if (channel()) {
    PrefixRows rows{.rows = n_, .columns = p_.dim_k, .ld = z_.ld_k, .a = s_.a};
    int count = 0;
    if (with_q) rows.x[count] = s_.qk, rows.out[count++] = s_.qk_in;
    if (delta_) rows.x[count] = k, rows.out[count++] = k_in;
    if (count > 0) gradient_.prefix_rows(rows);
    gradient_.suffix_rows({.rows = n_,
                           .columns = p_.dim_k,
                           .ld = z_.ld_k,
                           .a = s_.a,
                           .x = k,
                           .out = s_.k_out,
                           .total = s_.gamma});
    return;
  }
  // pairs[i][j] = a_{j+1} .. a_i for j <= i; its last row leads to the chunk's end.
  for (int64_t i = 0; i < n_; ++i) {
    float* row = s_.pairs + i * z_.ld_c;
    for (int64_t j = 0; j < i; ++j) row[j] = row[j - z_.ld_c] * s_.decay[i];
    row[i] = 1;
    s_.prefix[i] = (i > 0 ? s_.prefix[i - 1] : 1.0f) * s_.decay[i];
  }
  std::copy_n(s_.pairs + (n_ - 1) * z_.ld_c, n_, s_.suffix);
  std::fill_n(s_.gamma, z_.ld_k, s_.prefix[n_ - 1]);
  if (with_q)
    gradient_.scaled_copy(s_.qk, z_.ld_k, n_, p_.dim_k, s_.prefix, 1, s_.qk_in, z_.ld_k, false);
  if (delta_) gradient_.scaled_copy(k, z_.ld_k, n_, p_.dim_k, s_.prefix, 1, k_in, z_.ld_k, false);
  gradient_.scaled_copy(k, z_.ld_k, n_, p_.dim_k, s_.suffix, 1, s_.k_out, z_.ld_k, false);
}

// out[s][i][j] = <rows[s]_i, k_j under the decays between>, valid for j <= i (s = 0), j < i (s =
// 1).
void HeadBackward::products(const float* const rows[2], float* const out[2]) {
  if (channel()) {
    channel_products(rows, out);
    return;
  }
  kernels_.transpose(k_rows(), z_.ld_k, n_, p_.dim_k, s_.x_t, z_.ld_c);
  for (int s = 0; s < 2; ++s) {
    if (rows[s] == nullptr) continue;
    const Gemm product{.m = n_,
                       .n = n_,
                       .k = p_.dim_k,
                       .a = rows[s],
                       .a_row = z_.ld_k,
                       .b = s_.x_t,
                       .b_row = z_.ld_c,
                       .c = out[s],
                       .c_row = z_.ld_c};
    s == 0 ? kernels_.gemm(product) : gradient_.precise_gemm(product);
    for (int64_t i = 0; i < n_; ++i)
      for (int64_t j = 0; j <= i; ++j) out[s][i * z_.ld_c + j] *= s_.pairs[i * z_.ld_c + j];
  }
}

// node_x: the right half's rows under the decays from its start, stacked; node_k: the left half's
// keys under the decays to its end.
void HeadBackward::node_rows(int64_t low, int64_t mid, int64_t high, const float* const rows[2]) {
  PrefixRows right{
      .rows = high - mid, .columns = p_.dim_k, .ld = z_.ld_k, .a = s_.a + mid * z_.ld_k};
  int count = 0;
  for (int s = 0; s < 2; ++s) {
    if (rows[s] == nullptr) continue;
    right.x[count] = rows[s] + mid * z_.ld_k;
    right.out[count] = s_.node_x + count * right.rows * z_.ld_k;
    ++count;
  }
  gradient_.prefix_rows(right);
  gradient_.suffix_rows({.rows = mid - low,
                         .columns = p_.dim_k,
                         .ld = z_.ld_k,
                         .a = s_.a + low * z_.ld_k,
                         .x = k_rows() + low * z_.ld_k,
                         .out = s_.node_k,
                         .total = nullptr});
}

void HeadBackward::channel_products(const float* const rows[2], float* const out[2]) {
  for (int64_t half = z_.chunk / 2; half >= kPairRows; half /= 2)
    for (int64_t low = 0; low + half < n_; low += 2 * half) {
      const int64_t mid = low + half, high = std::min(mid + half, n_), ld_half = leading(half);
      node_rows(low, mid, high, rows);
      kernels_.transpose(s_.node_k, z_.ld_k, half, p_.dim_k, s_.node_kt, ld_half);
      const float* x = s_.node_x;
      for (int s = 0; s < 2; ++s) {
        if (rows[s] == nullptr) continue;
        // A vector wider than half writes into the next block of columns, which comes later.
        const Gemm product{.m = high - mid,
                           .n = half,
                           .k = p_.dim_k,
                           .a = x,
                           .a_row = z_.ld_k,
                           .b = s_.node_kt,
                           .b_row = ld_half,
                           .c = out[s] + mid * z_.ld_c + low,
                           .c_row = z_.ld_c};
        s == 0 ? kernels_.gemm(product) : gradient_.precise_gemm(product);
        x += (high - mid) * z_.ld_k;
      }
    }
  for (int64_t low = 0; low < n_; low += kPairRows) {
    PairBlock block{.rows = std::min(kPairRows, n_ - low),
                    .columns = p_.dim_k,
                    .ld = z_.ld_k,
                    .a = s_.a + low * z_.ld_k,
                    .k = k_rows() + low * z_.ld_k,
                    .ld_out = z_.ld_c};
    for (int s = 0; s < 2; ++s) {
      if (rows[s] == nullptr) continue;
      block.x[s] = rows[s] + low * z_.ld_k;
      block.out[s] = out[s] + low * z_.ld_c + low;
    }
    gradient_.pair_block(block);
  }
}

void HeadBackward::node_gradient(int64_t low, int64_t mid, int64_t high) {
  const int64_t half = mid - low, right = high - mid, ld_half = leading(half);
  const int64_t stacked = delta_ ? 2 * right : right;
  const float* const rows[2] = {s_.qk, delta_ ? k_rows() : nullptr};
  node_rows(low, mid, high, rows);
  for (int64_t i = 0; i < stacked; ++i) {
    const int64_t row = i < right ? mid + i : n_ + mid + i - right;
    std::memcpy(s_.node_p + i * ld_half, s_.dpa + row * z_.ld_c + low,
                static_cast<size_t>(half) * sizeof(float));
  }
  kernels_.gemm({.m = stacked,
                 .n = p_.dim_k,
                 .k = half,
                 .a = s_.node_p,
                 .a_row = ld_half,
                 .b = s_.node_k,
                 .b_row = z_.ld_k,
                 .c = s_.node_dx,
                 .c_row = z_.ld_k});
  kernels_.gemm({.m = half,
                 .n = p_.dim_k,
                 .k = stacked,
                 .a = s_.node_p,
                 .a_row = 1,
                 .a_col = ld_half,
                 .b = s_.node_x,
                 .b_row = z_.ld_k,
                 .c = s_.node_dk,
                 .c_row = z_.ld_k});
  float* dlog = gate_gradient_wanted() ? s_.dlog : nullptr;
  float* dq = s_.qk_in;
  float* dk = s_.qk_in + n_ * z_.ld_k;
  const auto from = [&](float* x, int64_t row) { return x == nullptr ? x : x + row * z_.ld_k; };
  PrefixGradient prefix{.rows = right,
                        .columns = p_.dim_k,
                        .ld = z_.ld_k,
                        .a = from(s_.a, mid),
                        .x = {from(s_.qk, mid)},
                        .dy = {s_.node_dx},
                        .dx = {from(dq, mid)},
                        .dlog = from(dlog, mid),
                        .set = false};
  if (delta_) {
    prefix.x[1] = k_rows() + mid * z_.ld_k;
    prefix.dy[1] = s_.node_dx + right * z_.ld_k;
    prefix.dx[1] = from(dk, mid);
  }
  gradient_.prefix_gradient(prefix);
  gradient_.suffix_gradient({.rows = half,
                             .columns = p_.dim_k,
                             .ld = z_.ld_k,
                             .a = from(s_.a, low),
                             .x = k_rows() + low * z_.ld_k,
                             .dy = s_.node_dk,
                             .through = nullptr,
                             .dx = from(dk, low),
                             .dlog = from(dlog, low)});
}

// In: qk_in holds the gradients of q_in and k_in, k_out that of k_out, dpa those of p and a. Out:
// qk_in holds the gradients of q and k, dlog that of the log decays.
void HeadBackward::channel_gradient() {
  float* dlog = gate_gradient_wanted() ? s_.dlog : nullptr;
  float* dk = s_.qk_in + n_ * z_.ld_k;
  PrefixGradient prefix{.rows = n_,
                        .columns = p_.dim_k,
                        .ld = z_.ld_k,
                        .a = s_.a,
                        .x = {s_.qk},
                        .dy = {s_.qk_in},
                        .dx = {s_.qk_in},
                        .dlog = dlog,
                        .set = true};
  if (delta_) prefix.x[1] = k_rows(), prefix.dy[1] = dk, prefix.dx[1] = dk;
  gradient_.prefix_gradient(prefix);
  if (!delta_) std::memset(dk, 0, static_cast<size_t>(n_ * z_.ld_k) * sizeof(float));
  gradient_.suffix_gradient({.rows = n_,
                             .columns = p_.dim_k,
                             .ld = z_.ld_k,
                             .a = s_.a,
                             .x = k_rows(),
                             .dy = s_.k_out,
                             .through = dlog != nullptr ? s_.through : nullptr,
                             .dx = dk,
                             .dlog = dlog});
  for (int64_t half = z_.chunk / 2; half >= kPairRows; half /= 2)
    for (int64_t low = 0; low + half < n_; low += 2 * half)
      node_gradient(low, low + half, std::min(low + 2 * half, n_));
  for (int64_t low = 0; low < n_; low += kPairRows) {
    const int64_t at = low * z_.ld_k;
    gradient_.pair_gradient({.rows = std::min(kPairRows, n_ - low),
                             .columns = p_.dim_k,
                             .ld = z_.ld_k,
                             .a = s_.a + at,
                             .q = s_.qk + at,
                             .k = k_rows() + at,
                             .dp = s_.dpa + low * z_.ld_c + low,
                             .da = delta_ ? s_.dpa + (n_ + low) * z_.ld_c + low : nullptr,
                             .ld_p = z_.ld_c,
                             .dq = s_.qk_in + at,
                             .dk = dk + at,
                             .dlog = dlog != nullptr ? dlog + at : dlog});
  }
}

// The same with one decay a token: dlog is a row of n numbers.
void HeadBackward::head_gradient(const Slot& slot) {
  float* dq = s_.qk_in;
  float* dk = s_.qk_in + n_ * z_.ld_k;
  const int64_t k = p_.dim_k, ld = z_.ld_k;
  if (gate_gradient_wanted()) head_gate_gradient(slot);
  for (int64_t i = 0; i < n_; ++i)
    for (int64_t j = 0; j <= i; ++j) {
      const int64_t at = i * z_.ld_c + j;
      s_.dpa[at] *= s_.pairs[at];
      if (delta_) s_.dpa[at + n_ * z_.ld_c] *= i == j ? 0.0f : s_.pairs[at];
    }
  kernels_.scale_rows(dq, ld, n_, k, s_.prefix, 1);
  if (delta_) kernels_.scale_rows(dk, ld, n_, k, s_.prefix, 1);
  gradient_.scaled_copy(s_.k_out, ld, n_, k, s_.suffix, 1, dk, ld, delta_);
  Triangular t{.m = n_,
               .n = k,
               .a = s_.dpa,
               .a_row = z_.ld_c,
               .a_col = 1,
               .b = k_rows(),
               .b_row = ld,
               .c = dq,
               .c_row = ld,
               .into = Into::add};
  kernels_.lower_product(t);
  t.a_row = 1, t.a_col = z_.ld_c, t.b = s_.qk, t.c = dk;
  kernels_.upper_product(t);
  if (!delta_) return;
  t.a += n_ * z_.ld_c, t.b = k_rows();
  kernels_.upper_product(t);
  t.a_row = z_.ld_c, t.a_col = 1;
  kernels_.lower_product(t);
}

void HeadBackward::head_gate_gradient(const Slot& slot) {
  const int64_t k = p_.dim_k, ld = z_.ld_k;
  float* entering = s_.dots;  // what reaches row i from the chunk's start
  float* leaving = s_.dots + n_;
  float* more = s_.dots + 2 * n_;
  gradient_.row_dots(s_.qk, s_.qk_in, ld, n_, k, entering);
  if (delta_) {
    gradient_.row_dots(k_rows(), s_.qk_in + n_ * ld, ld, n_, k, more);
    for (int64_t i = 0; i < n_; ++i) entering[i] += more[i];
  }
  gradient_.row_dots(k_rows(), s_.k_out, ld, n_, k, leaving);
  float through = 0;
  for (int64_t c = 0; c < k; ++c) through += s_.through[c];
  std::fill_n(s_.dlog, n_, through);
  float sum = 0;
  for (int64_t i = n_ - 1; i >= 0; --i) s_.dlog[i] += sum += entering[i] * s_.prefix[i];
  sum = 0;
  for (int64_t i = 0; i < n_; ++i) {
    s_.dlog[i] += sum;
    sum += leaving[i] * s_.suffix[i];
  }
  // Pairs j < i cross the decays of j + 1 .. i: sums up the columns, then along row t for j < t.
  std::fill_n(more, n_, 0.0f);
  for (int64_t t = n_ - 1; t > 0; --t) {
    float crossing = 0;
    for (int64_t j = 0; j < t; ++j) {
      const int64_t at = t * z_.ld_c + j;
      more[j] += s_.p[at] * s_.dpa[at];
      if (delta_) more[j] += slot.a[at] * s_.dpa[at + n_ * z_.ld_c];
      crossing += more[j];
    }
    s_.dlog[t] += crossing;
  }
}

}  // namespace linattn::cpu
