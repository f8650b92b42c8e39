// The CPU forward, chunk form, against the oracle: every kind of problem, sizes around every block
// boundary, hard gates and keys, types, layouts, pools, and the bitwise promises.
#include <algorithm>

#include "cases.h"
#include "cpu/kernels.h"

using namespace call;

namespace {

constexpr const char* kCpu = "cpu";
constexpr const char* kReference = "reference";

double worst = 0;

std::string sizes(const Case& c) {
  return text(c) + " T " + std::to_string(c.tokens) + " K " + std::to_string(c.dim_k) + " V " +
         std::to_string(c.dim_v);
}

// The oracle on the same (rounded) inputs, with outputs in fp32 so that the error is the CPU's own.
double check_against_oracle(Call call, double tolerance, const std::string& what) {
  Call wanted = call;
  for (Name name : {kQ, kK, kV}) wanted[name] = convert(call[name], LINATTN_F32);
  for (Name name : {kO, kHt, kStates})
    if (call[name].type != LINATTN_NONE) wanted[name] = make(LINATTN_F32, call[name].size);
  if (!run(call, kCpu) || !run(wanted, kReference)) return INFINITY;
  double most = 0;
  for (Name name : {kO, kHt, kStates}) {
    if (call[name].type == LINATTN_NONE) continue;
    const double off = error(call[name].values(), wanted[name].values());
    CHECK_THAT(off < tolerance, "tensor %d is off by %g: %s", name, off, what.c_str());
    most = std::max(most, off);
  }
  return most;
}

void every_size() {
  const int64_t dims[][2] = {{3, 5}, {16, 16}, {24, 40}, {1, 1}, {64, 33}, {128, 128}, {100, 256}};
  const int64_t tokens[] = {1, 6, 7, 8, 16, 17, 31, 32, 33, 63, 64, 65, 130};
  uint32_t seed = 0;
  for (Case c : all_cases()) {
    c.dim_k = dims[seed % 7][0], c.dim_v = dims[seed % 7][1];
    c.tokens = tokens[seed % 13];
    c.heads = 1 + seed % 2, c.group = 1 + seed % 3;
    ++seed;
    c.varlen &= c.tokens > 4;
    if (is_delta(c) && seed % 2) c.max_beta = 2;
    const Call call = forward_of(c, seed);
    worst = std::max(worst, check_against_oracle(call, 1e-5, sizes(c)));
    for (const auto& [type, tolerance] : {std::pair{LINATTN_BF16, 6e-3}, {LINATTN_F16, 2e-3}}) {
      Call narrow = call;
      for (Name name : {kQ, kK, kV, kO, kG, kBeta, kH0, kHt})
        if (narrow[name].type != LINATTN_NONE) narrow[name] = convert(narrow[name], type);
      check_against_oracle(narrow, tolerance, sizes(c) + " type " + std::to_string(type));
    }
  }
}

// One sequence of one head with the sizes that matter most.
Case long_case(int32_t family, int32_t gate, int64_t tokens, int64_t dim = 64) {
  Case c;
  c.family = family, c.gate = gate, c.tokens = tokens;
  c.batch = c.heads = c.group = 1, c.dim_k = c.dim_v = dim;
  c.beta = is_delta(c);
  return c;
}

constexpr std::pair<int32_t, int32_t> kGated[] = {{LINATTN_KDA, LINATTN_GATE_CHANNEL},
                                                  {LINATTN_GDN, LINATTN_GATE_HEAD},
                                                  {LINATTN_GLA, LINATTN_GATE_CHANNEL},
                                                  {LINATTN_SIMPLE_GLA, LINATTN_GATE_HEAD}};

void hard_gates() {
  std::mt19937 random(5);
  std::uniform_real_distribution<double> uniform(0, 1);
  const std::pair<const char*, std::function<double(int64_t)>> kinds[] = {
      {"alternating 0 and -5", [](int64_t t) { return t % 2 ? -5.0 : 0.0; }},
      {"all -5", [](int64_t) { return -5.0; }},
      {"all -1e4", [](int64_t) { return -1e4; }},
      {"some -inf", [&](int64_t) { return uniform(random) < 0.1 ? -INFINITY : -0.01; }},
      {"rare -inf", [](int64_t t) { return t == 70 ? -INFINITY : 0.0; }},
      {"all -inf", [](int64_t) { return -INFINITY; }},
      {"mixed", [&](int64_t) { return -std::exp(12 * uniform(random) - 8); }},
      {"small and constant", [](int64_t) { return -1e-4; }},
      {"switching", [](int64_t t) { return t / 8 % 2 ? -10.0 : 0.0; }}};
  for (const auto& [family, gate] : kGated)
    for (const auto& [name, gate_at] : kinds) {
      const bool constant = std::string(name) == "small and constant";
      Case c = long_case(family, gate, constant ? 2048 : 200);
      c.max_beta = 1;
      Call call = forward_of(c, 7);
      const int64_t row = call[kG].count() / c.tokens;
      for (int64_t i = 0; i < call[kG].count(); ++i) {
        double g = gate_at(i / row);
        // A switching gate: half the channels hold while the others decay.
        if (std::string(name) == "switching" && i % row % 2) g = -10 - g;
        call[kG].set(i, g);
      }
      worst = std::max(worst, check_against_oracle(call, 1e-5, sizes(c) + ", " + name));
    }
  // Growing states are legal in the additive families.
  for (const auto& [family, gate] : {kGated[2], kGated[3]}) {
    Call call = forward_of(long_case(family, gate, 200), 8);
    for (int64_t i = 0; i < call[kG].count(); ++i) call[kG].set(i, 0.3 * uniform(random));
    check_against_oracle(call, 1e-5, "positive gates");
  }
}

// Text repeats tokens, so keys repeat: the solve must not blow up where nothing decays.
void repeated_keys() {
  std::mt19937 random(6);
  std::normal_distribution<double> normal;
  for (const int32_t family : {LINATTN_DELTA, LINATTN_KDA})
    for (const double spread : {0.0, 0.02})
      for (const double beta : {0.5, 1.0, 1.7, 2.0}) {
        Case c = long_case(family, family == LINATTN_KDA ? LINATTN_GATE_CHANNEL : LINATTN_GATE_NONE,
                           2048);
        c.initial_state = false;
        Call call = forward_of(c, 9);
        std::vector<double> base(64);
        for (double& x : base) x = normal(random);
        for (int64_t t = 0; t < c.tokens; ++t) {
          std::vector<double> key = base;
          double squares = 0;
          for (double& x : key) x += spread * normal(random), squares += x * x;
          for (int64_t i = 0; i < 64; ++i)
            call[kK].set(t * 64 + i, key[static_cast<size_t>(i)] / std::sqrt(squares));
          call[kBeta].set(t, beta);
        }
        if (family == LINATTN_KDA)
          for (int64_t i = 0; i < call[kG].count(); ++i) call[kG].set(i, 0);
        const double off = check_against_oracle(
            call, beta > 1 ? 3e-5 : 1e-5,
            "keys " + std::to_string(spread) + " apart, beta " + std::to_string(beta));
        std::printf("family %d, keys %g apart, beta %g: %.2g\n", family, spread, beta, off);
      }
}

void strides(const Case& c, uint32_t seed) {
  Call packed = forward_of(c, seed), strided = packed;
  for (Tensor& t : strided.tensor) {
    if (t.type == LINATTN_NONE) continue;
    std::vector<int> inner_first(t.size.size());
    std::iota(inner_first.begin(), inner_first.end(), 0);  // batch or head innermost
    t = convert(t, t.type, inner_first, 2);
  }
  if (!run(packed, kCpu) || !run(strided, kCpu)) return;
  CHECK_THAT(same_bits(packed[kO], strided[kO]) && same_bits(packed[kHt], strided[kHt]), "%s",
             sizes(c).c_str());
  CHECK(strided[kO].data[static_cast<size_t>(bytes_of(strided[kO].type))] == kPoison);
}

// A packed call equals its sequences alone, for any number of threads; rows past the last offset
// are neither read nor left.
void packed_sequences(Case c, uint32_t seed) {
  c.varlen = true;
  Call packed = forward_of(c, seed);
  const std::vector<double> offsets = packed[kCuSeqlens].values();
  const int64_t tokens = packed[kQ].size[1], owned = static_cast<int64_t>(offsets.back());
  for (Name name : {kQ, kK, kV, kG, kBeta}) {
    Tensor& t = packed[name];
    if (t.type == LINATTN_NONE) continue;
    const int64_t row = t.count() / tokens;
    for (int64_t i = owned * row; i < t.count(); ++i) t.set(i, NAN);
  }
  linattn_set_num_threads(3);
  if (!run(packed, kCpu)) return;
  CHECK(all_finite(packed[kO]));
  CHECK(all_zero(cut(packed[kO], 1, owned, tokens)));
  for (int64_t n = 0; n < 4; ++n) {
    const auto begin = static_cast<int64_t>(offsets[static_cast<size_t>(n)]);
    const auto end = static_cast<int64_t>(offsets[static_cast<size_t>(n) + 1]);
    Call alone = packed;
    alone[kCuSeqlens] = {};
    for (Name name : {kQ, kK, kV, kG, kBeta, kO}) alone[name] = cut(packed[name], 1, begin, end);
    for (Name name : {kH0, kHt}) alone[name] = cut(packed[name], 0, n, n + 1);
    const Call wanted = alone;
    linattn_set_num_threads(static_cast<int32_t>(n) + 1);
    run(alone, kCpu);
    for (Name name : {kO, kHt})
      CHECK_THAT(same_bits(alone[name], wanted[name]), "sequence %lld tensor %d: %s",
                 static_cast<long long>(n), name, sizes(c).c_str());
  }
  linattn_set_num_threads(0);
}

// Few chains on many threads are cut into slices of V: the same bits.
void threads(Case c, uint32_t seed) {
  c.varlen = false, c.batch = 1, c.heads = 1, c.group = 1 + seed % 3;
  c.tokens = 700, c.dim_k = 40, c.dim_v = 100 + 60 * (seed % 3);
  Call call = forward_of(c, seed);
  linattn_set_num_threads(1);
  if (!run(call, kCpu)) return;
  for (const int count : {2, 3, 7}) {
    Call again = call;
    linattn_set_num_threads(count);
    run(again, kCpu);
    CHECK_THAT(same_bits(call[kO], again[kO]) && same_bits(call[kHt], again[kHt]), "%d threads: %s",
               count, sizes(c).c_str());
  }
  linattn_set_num_threads(0);
}

// What comes after a token, NaN included, changes no bit at or before it.
void prefixes(Case c, uint32_t seed) {
  c.varlen = false, c.tokens = 70;
  Call call = forward_of(c, seed);
  if (!run(call, kCpu)) return;
  for (const int64_t keep : {1, 5, 8, 31, 32, 37, 65}) {
    Call longer = call, shorter = call;
    for (Name name : {kQ, kK, kV, kG, kBeta}) {
      Tensor& t = longer[name];
      if (t.type == LINATTN_NONE) continue;
      const int64_t row = t.count() / (c.batch * c.tokens);
      for (int64_t i = 0; i < t.count(); ++i)
        if (i / row % c.tokens >= keep) t.set(i, NAN);
    }
    for (Name name : {kQ, kK, kV, kG, kBeta, kO}) shorter[name] = cut(call[name], 1, 0, keep);
    const Tensor wanted = shorter[kO];
    run(longer, kCpu), run(shorter, kCpu);
    CHECK_THAT(same_bits(cut(longer[kO], 1, 0, keep), wanted), "NaN after token %lld: %s",
               static_cast<long long>(keep), sizes(c).c_str());
    CHECK_THAT(same_bits(shorter[kO], wanted), "only %lld tokens: %s", static_cast<long long>(keep),
               sizes(c).c_str());
  }
}

// Prefill on a pool: live rows as without one, dead rows zero, intermediate states of both.
void pools(Case c, uint32_t seed) {
  c.varlen = false, c.batch = 5, c.tokens = 130, c.initial_state = true;
  Call plain = forward_of(c, seed);
  std::vector<int64_t> size = state_size(c, 5);
  size.insert(size.begin() + 1, 3);
  plain[kStates] = make(LINATTN_F32, size);
  Call pooled = plain;
  pooled[kHt] = {};
  const std::vector<int64_t> from{3, -1, 0, 7, 6}, to{3, 1, 2, 4, -1};
  Tensor pool = make(plain[kH0].type, state_size(c, 7));
  const int64_t block = pool.count() / 7;
  for (int64_t n : {0, 2, 4})
    for (int64_t i = 0; i < block; ++i)
      pool.set(from[static_cast<size_t>(n)] * block + i, plain[kH0].get(n * block + i));
  const Tensor before = pool;
  pooled[kH0] = pool;
  pooled[kStateIndices] = make(LINATTN_I64, {3, -1, 0, 7, 6});
  pooled[kOutputIndices] = make(LINATTN_I32, {3, 1, 2, 4, -1});
  pooled[kHasInitial] = make(LINATTN_BOOL, {1, 1, 0, 1, 1});
  for (int64_t i = 0; i < block; ++i) plain[kH0].set(2 * block + i, 0);
  for (const int count : {1, 7}) {
    Call call = pooled;
    linattn_set_num_threads(count);
    if (!run(plain, kCpu) || !run(call, kCpu)) return;
    for (int64_t n = 0; n < 5; ++n) {
      const bool dead = n == 1 || n == 3;
      const int64_t slot = to[static_cast<size_t>(n)];
      for (Name name : {kO, kStates}) {
        const Tensor row = cut(call[name], 0, n, n + 1);
        CHECK_THAT(dead ? all_zero(row) : same_bits(row, cut(plain[name], 0, n, n + 1)),
                   "row %lld tensor %d: %s", static_cast<long long>(n), name, text(c).c_str());
      }
      if (!dead && slot >= 0)
        CHECK(same_bits(cut(call[kH0], 0, slot, slot + 1), cut(plain[kHt], 0, n, n + 1)));
    }
    for (int64_t slot : {0, 1, 4, 5, 6})
      CHECK(same_bits(cut(call[kH0], 0, slot, slot + 1), cut(before, 0, slot, slot + 1)));
  }
  linattn_set_num_threads(0);
}

}  // namespace

int main() {
  const linattn::cpu::Kernels& best = linattn::cpu::kernels();
  for (const char* name : {"baseline", "avx2", "avx512", "amx", "neon"}) {
    const linattn::cpu::Kernels* table = linattn::cpu::kernels_of(name);
    if (table == nullptr) continue;
    linattn::cpu::select_kernels(*table);
    worst = 0;
    every_size();
    hard_gates();
    std::printf("%s: worst fp32 error %.2g\n", name, worst);
    uint32_t seed = 300;
    for (const Case& c : all_cases()) {
      if (table != &best && ++seed % 4) continue;
      strides(c, ++seed), packed_sequences(c, ++seed), pools(c, ++seed);
      prefixes(c, ++seed);
      if (seed % 3 == 0) threads(c, ++seed);
    }
    repeated_keys();
  }
  return check::finish();
}
