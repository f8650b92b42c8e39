// The oracle's forms, layouts, types and edges. Its gradients have a test of their own.
#include "cases.h"

using namespace call;

namespace {

constexpr const char* kReference = "reference";

// One key and one value channel, worked by hand.
void by_hand() {
  Case c;
  c.batch = 1, c.tokens = 2, c.heads = 1, c.group = 1, c.dim_k = 1, c.dim_v = 1;
  Call call = forward_of(c, 1);
  call.problem.scale = 2;
  const auto set = [&](Name name, std::initializer_list<double> values) {
    int64_t i = 0;
    for (double x : values) call[name].set(i++, x);
  };
  set(kH0, {2}), set(kG, {std::log(0.5), 0}), set(kBeta, {0.5, 1});
  set(kQ, {2, 1}), set(kK, {0.5, 1}), set(kV, {3, -1});
  // S = 1; u = 0.5 (3 - 0.5) = 1.25; S = 1.625; o = 2 * 2 * 1.625. Then u = -1 - 1.625; S = -1.
  run(call, kReference);
  CHECK_THAT(std::abs(call[kO].get(0) - 6.5) < 1e-6, "%g", call[kO].get(0));
  CHECK_THAT(std::abs(call[kO].get(1) + 2) < 1e-6, "%g", call[kO].get(1));
  CHECK_THAT(std::abs(call[kHt].get(0) + 1) < 1e-6, "%g", call[kHt].get(0));
  // Additive: S = 1 + 0.5 * 3 = 2.5, o = 10; S = 2.5 - 1, o = 3.
  call.problem.family = LINATTN_GLA;
  call[kBeta] = {};
  run(call, kReference);
  CHECK_THAT(std::abs(call[kO].get(0) - 10) < 1e-5, "%g", call[kO].get(0));
  CHECK_THAT(std::abs(call[kO].get(1) - 3) < 1e-5, "%g", call[kO].get(1));
}

// Strided tensors of every kind, with NaN between the elements, give the contiguous result.
void strides(const Case& c, uint32_t seed) {
  for (const bool backward : {false, true}) {
    Call packed = backward ? backward_of(c, seed) : forward_of(c, seed), strided = packed;
    for (Tensor& t : strided.tensor) {
      if (t.type == LINATTN_NONE) continue;
      std::vector<int> inner_first(t.size.size());
      std::iota(inner_first.begin(), inner_first.end(), 0);  // batch or head innermost
      t = convert(t, t.type, inner_first, 2);
    }
    if (backward) {  // an expanded gradient: the same row for every token and head
      Tensor& d = strided[kDo];
      d.stride[1] = d.stride[2] = 0;
      packed[kDo] = convert(d, d.type);
    }
    if (!run(packed, kReference) || !run(strided, kReference)) return;
    for (int name = kO; name < kNames; ++name)
      CHECK_THAT(same_bits(packed.tensor[name], strided.tensor[name]), "tensor %d: %s", name,
                 text(c).c_str());
    const Tensor& gaps = strided[backward ? kDv : kO];
    CHECK(gaps.data[static_cast<size_t>(bytes_of(gaps.type))] == kPoison);
  }
}

// 16-bit inputs and outputs: the fp32 call on the same rounded numbers, rounded once at the end.
void types(const Case& c, uint32_t seed, int32_t type, double half_ulp) {
  for (const bool backward : {false, true}) {
    Call narrow = backward ? backward_of(c, seed) : forward_of(c, seed);
    for (int name = 0; name < kNames; ++name) {
      Tensor& t = narrow.tensor[name];
      if (t.type != LINATTN_F32 || name == kALog || name == kDALog || name == kGamma) continue;
      if (type == LINATTN_F16 && (name == kDtBias || name == kDdtBias)) continue;
      t = convert(t, type);
    }
    Call wide = narrow;
    for (Tensor& t : wide.tensor)
      if (t.type == type) t = convert(t, LINATTN_F32);
    if (!run(narrow, kReference) || !run(wide, kReference)) return;
    for (int name = kO; name < kNames; ++name) {
      const Tensor &a = narrow.tensor[name], &b = wide.tensor[name];
      for (int64_t i = 0; a.type != LINATTN_NONE && i < a.count(); ++i)
        CHECK_THAT(std::abs(a.get(i) - b.get(i)) <= 1.001 * half_ulp * std::abs(b.get(i)) + 1e-7,
                   "tensor %d [%lld]: %g, %g: %s", name, static_cast<long long>(i), a.get(i),
                   b.get(i), text(c).c_str());
    }
  }
}

// A packed call equals its sequences alone; rows past the last offset are neither read nor left.
void packed_sequences(Case c, uint32_t seed) {
  c.varlen = true;
  for (const bool backward : {false, true}) {
    Call packed = backward ? backward_of(c, seed) : forward_of(c, seed);
    const std::vector<double> offsets = packed[kCuSeqlens].values();
    const int64_t tokens = packed[kQ].size[1], owned = static_cast<int64_t>(offsets.back());
    for (Name name : {kQ, kK, kV, kG, kBeta, kDo}) {
      Tensor& t = packed[name];
      if (t.type == LINATTN_NONE) continue;
      const int64_t row = t.count() / tokens;
      for (int64_t i = owned * row; i < t.count(); ++i) t.set(i, NAN);
    }
    if (!run(packed, kReference)) return;
    for (Name name : {kO, kDq, kDk, kDv, kDg, kDbeta})
      if (packed[name].type != LINATTN_NONE)
        CHECK_THAT(all_zero(cut(packed[name], 1, owned, tokens)), "tensor %d", name);
    std::vector<double> dA_log(static_cast<size_t>(c.heads * c.group));
    for (int64_t n = 0; n < 4; ++n) {
      const auto begin = static_cast<int64_t>(offsets[static_cast<size_t>(n)]);
      const auto end = static_cast<int64_t>(offsets[static_cast<size_t>(n) + 1]);
      Call alone = packed;
      alone[kCuSeqlens] = {};
      for (Name name : {kQ, kK, kV, kG, kBeta, kO, kDo, kDq, kDk, kDv, kDg, kDbeta})
        alone[name] = cut(packed[name], 1, begin, end);
      for (Name name : {kH0, kHt, kDht, kDh0}) alone[name] = cut(packed[name], 0, n, n + 1);
      const Call wanted = alone;
      run(alone, kReference);
      for (Name name : {kO, kHt, kDq, kDk, kDv, kDg, kDbeta, kDh0})
        CHECK_THAT(same_bits(alone[name], wanted[name]), "sequence %lld tensor %d: %s",
                   static_cast<long long>(n), name, text(c).c_str());
      for (size_t i = 0; i < dA_log.size() && alone[kDALog].type != LINATTN_NONE; ++i)
        dA_log[i] += alone[kDALog].get(static_cast<int64_t>(i));
    }
    if (packed[kDALog].type != LINATTN_NONE) CHECK(error(packed[kDALog].values(), dA_log) < 1e-6);
  }
}

// No tokens: every bit of the state passes, signalling NaNs too.
void empty_sequences() {
  for (int32_t type : {LINATTN_F32, LINATTN_BF16, LINATTN_F16}) {
    Case c;
    c.tokens = 0;
    Call call = forward_of(c, 3);
    call[kH0] = convert(call[kH0], type);
    call[kHt] = convert(call[kHt], type);
    for (size_t i = 0; i < call[kH0].data.size(); ++i)
      call[kH0].data[i] = static_cast<unsigned char>(i % 7 == 0 ? 0x7f : i * 37 + 1);
    run(call, kReference);
    CHECK(same_bits(call[kH0], call[kHt]));
    call[kH0] = {};
    run(call, kReference);
    CHECK(all_zero(call[kHt]));
  }
  Case c;
  c.tokens = 0;
  Call call = backward_of(c, 3);
  run(call, kReference);
  CHECK(same_bits(call[kDht], call[kDh0]));
}

// A log decay of -inf forgets everything before it; gradients stay finite and exact.
void no_memory(Case c, uint32_t seed) {
  c.varlen = false, c.batch = 1;
  const int64_t cut_at = 3;
  Call whole = forward_of(c, seed), whole_back = backward_of(c, seed);
  const double closed = c.gate_form == LINATTN_GATE_RAW_SOFTPLUS ? INFINITY : -INFINITY;
  const int64_t row = whole[kG].count() / c.tokens;
  for (Call* call : {&whole, &whole_back})
    for (int64_t i = 0; i < row; ++i) (*call)[kG].set(cut_at * row + i, closed);
  run(whole, kReference), run(whole_back, kReference);
  Call tail = whole;
  for (Name name : {kQ, kK, kV, kG, kBeta, kO}) tail[name] = cut(whole[name], 1, cut_at, c.tokens);
  tail[kH0] = {};
  const Tensor o = tail[kO], ht = tail[kHt];
  run(tail, kReference);
  CHECK(same_bits(tail[kO], o) && same_bits(tail[kHt], ht));
  for (int name = kDq; name < kNames; ++name)
    if (whole_back.tensor[name].type != LINATTN_NONE)
      CHECK_THAT(all_finite(whole_back.tensor[name]), "tensor %d: %s", name, text(c).c_str());
  const Tensor dg = cut(whole_back[kDg], 1, cut_at, cut_at + 1);
  CHECK(all_zero(dg));
}

// Zero rows of q and k: unit rows of zero, and a gradient 1/sqrt(1e-6) times that of the unit row.
void zero_rows() {
  Case c;
  c.norm = true;
  Call normed = backward_of(c, 11), plain = normed;
  for (Name name : {kQ, kK})
    for (int64_t row = 0; row < normed[name].count(); row += c.dim_k) {
      double squares = 1e-6;
      for (int64_t i = row; i < row + c.dim_k; ++i) {
        if (row / c.dim_k % 5 == 0) normed[name].set(i, 0);
        squares += std::pow(normed[name].get(i), 2);
      }
      for (int64_t i = row; i < row + c.dim_k; ++i)
        plain[name].set(i, normed[name].get(i) / std::sqrt(squares));
    }
  plain.problem.flags = 0;
  run(normed, kReference), run(plain, kReference);
  for (Name name : {kDq, kDk})
    for (int64_t i = 0; i < normed[name].count(); ++i)
      if (i / c.dim_k % 5 == 0)
        CHECK_THAT(std::abs(normed[name].get(i) - 1000 * plain[name].get(i)) <
                       1e-4 * (1 + std::abs(normed[name].get(i))),
                   "%g, 1000 * %g", normed[name].get(i), plain[name].get(i));
}

// Each gradient asked for alone is the same bit for bit, and so is any number of threads.
void subsets(const Case& c, uint32_t seed) {
  Call full = backward_of(c, seed);
  linattn_set_num_threads(1);
  run(full, kReference);
  linattn_set_num_threads(3);
  for (int name = kDq; name < kNames; ++name) {
    if (full.tensor[name].type == LINATTN_NONE) continue;
    Call one = full;
    for (int other = kDq; other < kNames; ++other)
      if (other != name) one.tensor[other] = {};
    one.tensor[name] = make(full.tensor[name].type, full.tensor[name].size);
    run(one, kReference);
    CHECK_THAT(same_bits(one.tensor[name], full.tensor[name]), "tensor %d", name);
  }
  linattn_set_num_threads(0);
}

// Many segments between checkpoints; half the sequence at a time gives the same gradients.
void long_backward() {
  Case c;
  c.batch = 1, c.heads = 1, c.tokens = 300;
  Call whole = backward_of(c, 21);
  run(whole, kReference);
  Call head = build(c, 21);
  add_forward_outputs(head, c);
  Call tail = whole;
  const int64_t half = 130;
  for (Name name : {kQ, kK, kV, kG, kBeta, kO}) head[name] = cut(head[name], 1, 0, half);
  run(head, kReference);
  Call head_back = whole;
  for (Name name : {kQ, kK, kV, kG, kBeta, kDo, kDq, kDk, kDv, kDg, kDbeta}) {
    tail[name] = cut(whole[name], 1, half, c.tokens);
    head_back[name] = cut(whole[name], 1, 0, half);
  }
  tail[kH0] = head[kHt];
  run(tail, kReference);
  head_back[kDht] = tail[kDh0];
  run(head_back, kReference);
  for (Name name : {kDq, kDk, kDv, kDg, kDbeta}) {
    CHECK(error(tail[name].values(), cut(whole[name], 1, half, c.tokens).values()) < 1e-5);
    CHECK(error(head_back[name].values(), cut(whole[name], 1, 0, half).values()) < 1e-5);
  }
  CHECK(error(head_back[kDh0].values(), whole[kDh0].values()) < 1e-5);
}

}  // namespace

int main() {
  by_hand();
  uint32_t seed = 100;
  for (const Case& c : all_cases()) {
    strides(c, ++seed);
    types(c, ++seed, LINATTN_BF16, 0x1p-8);
    types(c, ++seed, LINATTN_F16, 0x1p-11);
    packed_sequences(c, ++seed);
    if (c.gate == LINATTN_GATE_HEAD || c.gate == LINATTN_GATE_CHANNEL)
      if (c.gate_form != LINATTN_GATE_RAW_BOUNDED) no_memory(c, ++seed);
    subsets(c, ++seed);
  }
  empty_sequences();
  zero_rows();
  long_backward();
  return check::finish();
}
