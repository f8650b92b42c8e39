// The fast backward pass on the CPU against the oracle.
#include "cases.h"

using namespace call;

namespace {

constexpr Name kGradients[] = {kDq, kDk, kDv, kDg, kDbeta, kDALog, kDdtBias, kDh0};
constexpr const char* kGradientNames[] = {"dq",    "dk",     "dv",       "dg",
                                          "dbeta", "dA_log", "ddt_bias", "dh0"};

double worst_seen = 0;

// Within `tolerance` of the oracle for each gradient.
void compare(Call& call, const char* what, double tolerance = 2e-5) {
  Call oracle = call;
  if (!run(call, "cpu") || !run(oracle, "reference")) return;
  for (size_t i = 0; i < std::size(kGradients); ++i) {
    const Tensor& t = call[kGradients[i]];
    if (t.type == LINATTN_NONE) continue;
    const double e = error(t.values(), oracle[kGradients[i]].values());
    CHECK_THAT(e <= tolerance, "%s is off by %.2e: %s", kGradientNames[i], e, what);
    if (t.type == LINATTN_F32) worst_seen = std::max(worst_seen, e);
  }
}

void families() {
  uint32_t seed = 1;
  for (Case c : all_cases()) {
    for (const auto& [tokens, k, v, group] :
         {std::tuple<int64_t, int64_t, int64_t, int64_t>{7, 3, 5, 2},
          {37, 17, 33, 1},
          {75, 64, 32, 3}}) {
      c.tokens = tokens, c.dim_k = k, c.dim_v = v, c.group = group;
      Call call = backward_of(c, ++seed);
      compare(call, text(c).c_str());
    }
  }
}

// Lengths around the chunk and its halves, head dimensions around the vector widths.
void sizes() {
  Case c;
  c.batch = 1, c.heads = 1;
  for (const int32_t family : {LINATTN_KDA, LINATTN_SIMPLE_GLA}) {
    c.family = family;
    c.gate = family == LINATTN_KDA ? LINATTN_GATE_CHANNEL : LINATTN_GATE_HEAD;
    c.beta = family == LINATTN_KDA;
    for (const int64_t tokens : {0, 1, 2, 8, 9, 15, 16, 17, 31, 32, 33, 40, 63, 64, 65, 127, 129}) {
      c.tokens = tokens, c.dim_k = 24, c.dim_v = 20;
      Call call = backward_of(c, static_cast<uint32_t>(tokens));
      compare(call, ("tokens " + std::to_string(tokens)).c_str());
    }
    for (const auto& [k, v] : {std::pair<int64_t, int64_t>{1, 1},
                               {1, 256},
                               {256, 1},
                               {15, 16},
                               {16, 17},
                               {128, 128},
                               {200, 96},
                               {256, 256}}) {
      c.tokens = 50, c.dim_k = k, c.dim_v = v;
      Call call = backward_of(c, static_cast<uint32_t>(k + v));
      compare(call, ("K " + std::to_string(k) + " V " + std::to_string(v)).c_str());
    }
  }
}

// Log decays where a difference of cumulated sums is wrong or NaN.
void gates() {
  const auto fill = [](Tensor& g, int pattern, std::mt19937& random) {
    std::uniform_real_distribution<double> uniform(0, 1);
    const int64_t row = g.count() / g.size[0] / g.size[1];
    for (int64_t i = 0; i < g.count(); ++i) {
      const int64_t token = i / row;
      const double weak = -0.05 * uniform(random);
      double x = 0;
      switch (pattern) {
        case 0:
          x = 0;
          break;
        case 1:
          x = -1e-8;
          break;
        case 2:
          x = -5;
          break;
        case 3:
          x = -30;
          break;
        case 4:
          x = -1e4;
          break;
        case 5:
          x = -INFINITY;
          break;
        case 6:
          x = token % 2 ? -5 : 0;
          break;
        case 7:
          x = uniform(random) < 0.2 ? -INFINITY : weak;
          break;
        case 8:
          x = (token / 5 + i) % 2 ? -8 : weak;
          break;
        case 9:
          x = uniform(random) < 0.3 ? -1e4 : weak;
          break;
        default:
          x = token % 7 == 3 ? -40 : weak;
          break;
      }
      g.set(i, x);
    }
  };
  for (const auto& [family, gate] : {std::pair{LINATTN_KDA, LINATTN_GATE_CHANNEL},
                                     {LINATTN_GDN, LINATTN_GATE_HEAD},
                                     {LINATTN_GLA, LINATTN_GATE_CHANNEL},
                                     {LINATTN_SIMPLE_GLA, LINATTN_GATE_HEAD}})
    for (int pattern = 0; pattern < 11; ++pattern) {
      Case c;
      c.family = family, c.gate = gate, c.beta = is_delta(c);
      c.batch = 1, c.tokens = 100, c.heads = 1, c.group = 1, c.dim_k = 32, c.dim_v = 32;
      Call call = backward_of(c, static_cast<uint32_t>(pattern));
      std::mt19937 random(static_cast<uint32_t>(pattern));
      fill(call[kG], pattern, random);
      compare(call, ("gate pattern " + std::to_string(pattern) + ", " + text(c)).c_str());
    }
}

// Raw gates driven into saturation: every gradient stays finite.
void saturated_gates() {
  for (const int32_t form : {LINATTN_GATE_RAW_SOFTPLUS, LINATTN_GATE_RAW_BOUNDED})
    for (const double A_log : {-100.0, 0.0, 5.0, 80.0}) {
      Case c;
      c.gate_form = form, c.A_log = true, c.dt_bias = true;
      c.batch = 1, c.tokens = 40, c.dim_k = 16, c.dim_v = 16;
      Call call = backward_of(c, 5);
      for (int64_t i = 0; i < call[kALog].count(); ++i) call[kALog].set(i, A_log);
      for (int64_t i = 0; i < call[kG].count(); i += 3) call[kG].set(i, i % 2 ? 60 : -60);
      run(call, "cpu");
      for (Name name : kGradients) CHECK_THAT(all_finite(call[name]), "A_log %g", A_log);
    }
}

// Text repeats tokens, so keys repeat; with no decay at all nothing is forgotten either.
void repeated_keys() {
  std::mt19937 random(6);
  std::normal_distribution<double> normal;
  for (const int32_t family : {LINATTN_DELTA, LINATTN_KDA})
    for (const double spread : {0.0, 0.02})
      for (const double beta : {0.5, 1.0, 1.7, 2.0}) {
        Case c;
        c.family = family;
        c.gate = family == LINATTN_KDA ? LINATTN_GATE_CHANNEL : LINATTN_GATE_NONE;
        c.batch = 1, c.tokens = 2048, c.heads = 1, c.group = 1, c.dim_k = 64, c.dim_v = 32;
        c.initial_state = false;
        Call call = backward_of(c, 3);
        repeat_keys(call, c, spread, beta, random, normal);
        compare(call,
                ("keys " + std::to_string(spread) + " apart, beta " + std::to_string(beta)).c_str(),
                beta > 1 ? 3e-5 : 2e-5);
      }
}

void types() {
  for (const int32_t type : {LINATTN_BF16, LINATTN_F16})
    for (Case c : {Case{}, Case{.family = LINATTN_GDN, .gate = LINATTN_GATE_HEAD, .norm = true}}) {
      c.tokens = 70, c.dim_k = 40, c.dim_v = 48;
      Call call = backward_of(c, 11);
      for (int name = 0; name < kNames; ++name) {
        Tensor& t = call.tensor[name];
        if (t.type == LINATTN_F32) t = convert(t, type);
      }
      compare(call, text(c).c_str(), type == LINATTN_BF16 ? 4e-3 : 5e-4);
    }
}

// Strides of every kind with NaN between the elements, and an expanded do, give the same bits.
void strides() {
  for (Case c : all_cases()) {
    c.tokens = 35;
    Call packed = backward_of(c, 9), strided = packed;
    for (Tensor& t : strided.tensor) {
      if (t.type == LINATTN_NONE) continue;
      std::vector<int> inner_first(t.size.size());
      std::iota(inner_first.begin(), inner_first.end(), 0);
      t = convert(t, t.type, inner_first, 2);
    }
    Tensor& d = strided[kDo];
    d.stride[1] = d.stride[2] = 0;
    packed[kDo] = convert(d, d.type);
    if (!run(packed, "cpu") || !run(strided, "cpu")) return;
    for (Name name : kGradients)
      CHECK_THAT(same_bits(packed[name], strided[name]), "tensor %d: %s", name, text(c).c_str());
  }
}

// The same bits whatever the number of threads, and whichever other outputs are asked for; what is
// not asked for need not be there.
void repeatable() {
  for (Case c : all_cases()) {
    c.tokens = 45, c.group = 4, c.heads = 1;
    linattn_set_num_threads(1);
    Call all = backward_of(c, 21);
    run(all, "cpu");
    linattn_set_num_threads(3);
    Call again = all;
    run(again, "cpu");
    for (Name name : kGradients)
      CHECK_THAT(same_bits(all[name], again[name]), "%d: %s", name, text(c).c_str());
    for (Name name : kGradients) {
      Call some = all;
      for (Name other : kGradients)
        if (other != name) some[other] = {};
      if (some[name].type == LINATTN_NONE) continue;
      run(some, "cpu");
      CHECK_THAT(same_bits(all[name], some[name]), "%d: %s", name, text(c).c_str());
    }
    all[kDht] = {};
    compare(all, text(c).c_str());
  }
  linattn_set_num_threads(0);
}

// Rows that no sequence owns hold NaN, and their gradients are zero.
void unowned_rows() {
  Case c;
  c.varlen = true, c.tokens = 40;
  Call clean = backward_of(c, 2), dirty = clean;
  for (Name name : {kQ, kK, kV, kG, kBeta, kDo}) {
    Tensor& t = dirty[name];
    const int64_t row = t.count() / t.size[1];
    for (int64_t i = (t.size[1] - 2) * row; i < t.count(); ++i) t.set(i, NAN);
  }
  run(clean, "cpu"), run(dirty, "cpu");
  for (Name name : {kDq, kDk, kDv, kDg, kDbeta, kDh0}) CHECK(same_bits(clean[name], dirty[name]));
  const Tensor& dq = dirty[kDq];
  const int64_t row = dq.count() / dq.size[1];
  for (int64_t i = (dq.size[1] - 2) * row; i < dq.count(); ++i) CHECK(dq.get(i) == 0);
}

// Scratch stays within inputs + outputs + 1 MiB a thread, where that leaves room for a few states
// or for one alone too.
void memory() {
  for (const int threads : {1, 4})
    for (const int64_t tokens : {4, 20, 40, 90, 700, 5000})
      for (const int64_t dim : {64, 256})
        for (const bool varlen : {false, true}) {
          Case c{.varlen = varlen,
                 .initial_state = false,
                 .batch = 1,
                 .tokens = tokens,
                 .heads = 1,
                 .group = 1,
                 .dim_k = dim,
                 .dim_v = dim};
          linattn_set_num_threads(threads);
          Call call = backward_of(c, 1);
          call[kDht] = {};
          for (Tensor& t : call.tensor)
            if (t.type == LINATTN_F32) t = convert(t, LINATTN_BF16);
          int64_t bytes = int64_t{threads} << 20;
          for (const Tensor& t : call.tensor) bytes += t.count() * bytes_of(t.type);
          Planned planned(call, "cpu");
          CHECK_THAT(planned.workspace_bytes() <= bytes, "%lld of %lld: tokens %lld, dim %lld",
                     static_cast<long long>(planned.workspace_bytes()),
                     static_cast<long long>(bytes), static_cast<long long>(tokens),
                     static_cast<long long>(dim));
          if (tokens <= 90 || (dim == 256 && !varlen && tokens <= 700))
            compare(call, "little memory", 4e-3);
        }
  linattn_set_num_threads(0);
}

}  // namespace

int main() {
  families();
  sizes();
  gates();
  saturated_gates();
  repeated_keys();
  types();
  strides();
  repeatable();
  unowned_rows();
  memory();
  std::printf("largest fp32 error %.2e\n", worst_seen);
  return check::finish();
}
