// From state to state: token by token, pools with dead rows, speculative columns, intermediate
// states. Compiled once for each implementation that keeps these promises bit by bit.
#include <algorithm>

#include "cases.h"

using namespace call;

#ifndef LINATTN_TESTED
#define LINATTN_TESTED "reference"
#endif

namespace {

constexpr const char* kTested = LINATTN_TESTED;

// Token by token through the recurrent form, the state carried in fp32, equals the chunk form.
void decode_equals_prefill(Case c, uint32_t seed) {
  c.varlen = false;
  Call whole = forward_of(c, seed);
  run(whole, kTested);
  Call step = whole;
  step.problem.form = LINATTN_RECURRENT;
  for (int64_t t = 0; t < c.tokens; ++t) {
    for (Name name : {kQ, kK, kV, kG, kBeta, kO}) step[name] = cut(whole[name], 1, t, t + 1);
    const std::vector<double> wanted = step[kO].values();
    if (!run(step, kTested)) return;
    CHECK_THAT(error(step[kO].values(), wanted) < 1e-5, "token %lld: %s", static_cast<long long>(t),
               text(c).c_str());
    step[kH0] = step[kHt];
  }
  CHECK(error(step[kHt].values(), whole[kHt].values()) < 1e-6);
}

struct Decode {
  Case c;
  Call call;      // on a pool of seven padded slots
  Tensor before;  // the pool before the call
};

constexpr int64_t kSlots = 7;

// A batch of `rows` decode rows on a pool whose state type is `type`.
Decode decode(Case c, uint32_t seed, int32_t type, int64_t rows, int64_t tokens) {
  c.varlen = false, c.initial_state = false, c.batch = rows, c.tokens = tokens;
  Decode d{c, build(c, seed), {}};
  d.call.problem.form = LINATTN_RECURRENT;
  d.call[kO] = make(LINATTN_F32, d.call[kV].size);
  const std::vector<int64_t> size = state_size(c, kSlots);
  Tensor pool = make(type, size);
  pool.stride[0] += 6;  // padding between slots
  pool.data.assign(static_cast<size_t>(pool.stride[0] * kSlots * bytes_of(type)), kPoison);
  std::mt19937 random(seed + 1);
  std::normal_distribution<double> normal;
  for (int64_t i = 0; i < pool.count(); ++i) pool.set(i, normal(random));
  d.call[kH0] = d.before = pool;
  return d;
}

Tensor slot(const Tensor& pool, int64_t index) { return cut(pool, 0, index, index + 1); }

// One row alone, from a state of its own to a final state; tokens [0, count).
Call alone(const Decode& d, int64_t row, const Tensor& state, int64_t count) {
  Call call = d.call;
  call.problem.flags &= ~uint32_t{LINATTN_FLAG_NULL_STATE_INDEX};
  call.problem.null_state_index = 0;
  for (Name name : {kStateIndices, kOutputIndices, kHasInitial, kAccepted}) call[name] = {};
  for (Name name : {kQ, kK, kV, kG, kBeta, kO})
    if (call[name].type != LINATTN_NONE)
      call[name] = cut(cut(call[name], 0, row, row + 1), 1, 0, count);
  call[kH0] = state;
  call[kHt] = make(d.before.type, state_size(d.c, 1));
  run(call, kTested);
  return call;
}

// Slots not in `written` and the padding hold what they held.
void check_untouched(const Decode& d, const std::vector<int64_t>& written) {
  const Tensor &now = d.call.tensor[kH0], &before = d.before;
  std::vector<bool> free(now.data.size(), true);
  for (int64_t index : written)
    for (int64_t i = 0; i < now.count() / kSlots; ++i) {
      const auto at =
          static_cast<size_t>(now.offset(index * (now.count() / kSlots) + i) * bytes_of(now.type));
      std::fill_n(free.begin() + static_cast<int64_t>(at), bytes_of(now.type), false);
    }
  bool same = true;
  for (size_t i = 0; i < free.size(); ++i) same &= !free[i] || now.data[i] == before.data[i];
  CHECK(same);
}

// In place: live rows as alone, dead rows zero, every other byte of the pool as it was.
void pool_in_place(const Case& base, uint32_t seed, int32_t type) {
  const std::vector<int64_t> indices{4, -1, 3, 1, 99, 0, 6}, targets{4, 5, 2, 5, 5, 0, -1};
  for (const bool separate : {false, true}) {
    Decode d = decode(base, seed, type, 7, 2);
    d.call.problem.flags |= LINATTN_FLAG_NULL_STATE_INDEX;
    d.call.problem.null_state_index = 3;
    d.call[kStateIndices] = convert(make(LINATTN_I32, {4, -1, 3, 1, 99, 0, 6}), LINATTN_I32, {}, 1);
    if (separate) d.call[kOutputIndices] = make(LINATTN_I64, {4, 5, 2, 5, 5, 0, -1});
    d.call[kHasInitial] = make(LINATTN_BOOL, {1, 1, 1, 1, 1, 0, 1});
    for (int64_t i = 0; i < slot(d.before, 0).count(); ++i) d.before.set(i, NAN);  // ignored
    d.call[kH0] = d.before;
    if (!run(d.call, kTested)) return;
    std::vector<int64_t> written;
    for (int64_t row = 0; row < 7; ++row) {
      const int64_t from = indices[static_cast<size_t>(row)];
      const int64_t to = separate ? targets[static_cast<size_t>(row)] : from;
      const Tensor o = cut(d.call[kO], 0, row, row + 1);
      if (from < 0 || from >= kSlots || from == 3) {
        CHECK_THAT(all_zero(o), "dead row %lld", static_cast<long long>(row));
        continue;
      }
      const Call wanted = alone(d, row, row == 5 ? Tensor{} : slot(d.before, from), 2);
      CHECK_THAT(same_bits(o, wanted[kO]), "row %lld: %s", static_cast<long long>(row),
                 text(base).c_str());
      if (to < 0) continue;
      CHECK_THAT(same_bits(slot(d.call[kH0], to), wanted[kHt]), "slot %lld: %s",
                 static_cast<long long>(to), text(base).c_str());
      written.push_back(to);
    }
    check_untouched(d, written);
  }
}

// [N,1+S] indices: start from column accepted-1, the state after token j goes to column j.
void speculative_columns(const Case& base, uint32_t seed) {
  const int64_t from[3][3] = {{0, 1, 2}, {3, 4, -1}, {5, 6, 6}};
  const int64_t elsewhere[3][3] = {{6, 5, 2}, {0, -1, 3}, {1, 1, 1}};
  const auto table = [](const int64_t (&rows)[3][3]) {
    Tensor t = make(LINATTN_I64, {3, 3}, {0, 1}, 0);  // column-major
    for (int64_t i = 0; i < 9; ++i) t.set(i, static_cast<double>(rows[i / 3][i % 3]));
    return t;
  };
  for (const bool separate : {false, true}) {
    const auto& to = separate ? elsewhere : from;
    Decode d = decode(base, seed, LINATTN_F32, 3, 2);
    d.call[kStateIndices] = table(from);
    if (separate) d.call[kOutputIndices] = table(elsewhere);
    d.call[kAccepted] = make(LINATTN_I32, {3, 1, 4});  // the last is past the columns: a dead row
    if (!run(d.call, kTested)) return;
    for (int64_t row = 0; row < 2; ++row) {
      const Tensor start = slot(d.before, row == 0 ? 2 : 3);
      for (int64_t j = 0; j < 2; ++j) {
        const Call wanted = alone(d, row, start, j + 1);
        if (to[row][j] >= 0) CHECK(same_bits(slot(d.call[kH0], to[row][j]), wanted[kHt]));
        if (j == 1) CHECK(same_bits(cut(d.call[kO], 0, row, row + 1), wanted[kO]));
      }
    }
    CHECK(all_zero(cut(d.call[kO], 0, 2, 3)));
    check_untouched(d, separate ? std::vector<int64_t>{6, 5, 0} : std::vector<int64_t>{0, 1, 3, 4});
  }
}

// Packed sequences on a pool, one of them empty: it moves its slot's bits, or clears the target.
void empty_sequence_on_pool() {
  for (const bool has : {true, false}) {
    Decode d = decode(Case{}, 5, LINATTN_BF16, 1, 4);
    d.call[kCuSeqlens] = make(LINATTN_I32, {0, 2, 2, 4});
    d.call[kStateIndices] = make(LINATTN_I32, {0, 1, 2});
    d.call[kOutputIndices] = make(LINATTN_I32, {3, 4, 5});
    d.call[kHasInitial] = make(LINATTN_BOOL, {1.0, has ? 1.0 : 0.0, 1.0});
    d.before.element(slot(d.before, 0).count())[0] = 0x81;  // a signalling NaN in slot 1
    d.before.element(slot(d.before, 0).count())[1] = 0x7f;
    d.call[kH0] = d.before;
    if (!run(d.call, kTested)) return;
    const Tensor moved = slot(d.call[kH0], 4);
    CHECK(has ? same_bits(moved, slot(d.before, 1)) : all_zero(moved));
    check_untouched(d, {3, 4, 5});
  }
}

// The state before every 64 (or n * 64) tokens, numbered sequence by sequence when packed.
void intermediate_states() {
  for (const int64_t every : {64, 128})
    for (const bool varlen : {false, true}) {
      Case c;
      c.batch = varlen ? 1 : 2, c.tokens = 200, c.heads = 1;
      Call call = forward_of(c, 9);
      call.problem.state_every = every;
      std::vector<int64_t> offsets{0, 200};
      if (varlen) {
        call[kCuSeqlens] = make(LINATTN_I32, {0, 129, 129, 195});
        call[kH0] = make(LINATTN_F32, state_size(c, 3), [n = 0.0]() mutable { return n += 0.01; });
        call[kHt] = make(LINATTN_F32, state_size(c, 3));
        offsets = {0, 129, 129, 195};
      }
      const int64_t rows =
          varlen ? linattn_intermediate_rows_bound(200, 3, every) : (200 + every - 1) / every;
      std::vector<int64_t> size = state_size(c, c.batch);
      size.insert(size.begin() + 1, rows);
      call[kStates] = make(LINATTN_F32, size);
      if (!run(call, kTested)) return;
      int64_t row = 0;
      for (size_t n = 0; n + 1 < offsets.size(); ++n)
        for (int64_t t = offsets[n]; t < offsets[n + 1]; t += every, ++row)
          for (int64_t b = 0; b < c.batch; ++b) {
            const int64_t sequence = varlen ? static_cast<int64_t>(n) : b;
            Call prefix = call;
            prefix.problem.state_every = 0;
            prefix[kCuSeqlens] = prefix[kStates] = {};
            for (Name name : {kQ, kK, kV, kG, kBeta, kO})
              prefix[name] = cut(cut(call[name], 0, b, b + 1), 1, offsets[n], t);
            prefix[kH0] = slot(call[kH0], sequence), prefix[kHt] = slot(call[kHt], sequence);
            run(prefix, kTested);
            Tensor stored = cut(cut(call[kStates], 0, b, b + 1), 1, row, row + 1);
            stored.size.erase(stored.size.begin()), stored.stride.erase(stored.stride.begin());
            CHECK(same_bits(stored, prefix[kHt]));
          }
      CHECK(row == (varlen ? (every == 64 ? 5 : 3) : rows));
      CHECK(all_zero(cut(call[kStates], 1, row, rows)));
    }
}

}  // namespace

int main() {
  uint32_t seed = 500;
  for (const Case& c : all_cases()) {
    decode_equals_prefill(c, ++seed);
    pool_in_place(c, ++seed, LINATTN_F32);
    pool_in_place(c, ++seed, LINATTN_F16);
    speculative_columns(c, ++seed);
  }
  empty_sequence_on_pool();
  intermediate_states();
  return check::finish();
}
