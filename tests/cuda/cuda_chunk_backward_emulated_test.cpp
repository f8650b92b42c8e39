// The chunked backward's kernels, run lane by lane on the host, against the oracle. Needs neither
// nvcc nor a GPU.
#include "../cpp/cases.h"
#include "cuda/portable/backward_finish.cuh"
#include "cuda/portable/chunk_gradient.plan.h"
#include "cuda/portable/chunk_gradient_channel.cuh"
#include "cuda/portable/chunk_gradient_token.cuh"
#include "cuda/portable/chunk_states.cuh"
#include "emulated.h"
#include "simt/simt.h"

using namespace call;

namespace {

constexpr Name kGradients[] = {kDq, kDk, kDv, kDg, kDbeta, kDALog, kDdtBias, kDh0};
constexpr const char* kGradientNames[] = {"dq",    "dk",     "dv",       "dg",
                                          "dbeta", "dA_log", "ddt_bias", "dh0"};

template <int kDim, bool kChannel, bool kDelta>
void launch_rows(const linattn::cuda::ChunkGradientParams& params,
                 const linattn::cuda::ChunkGradientGrids& grids, int warps) {
  using namespace linattn::cuda;
  simt::launch(chunk_gradient_prepare_portable<kBf16, kDim, kChannel>, grids.prepare,
               chunk_prepare_threads(kDim, kChannel), params.chunk);
  simt::launch(chunk_states_portable<kDim, kChannel, kDelta>, grids.states, warps * 32, params);
  if constexpr (kChannel)
    simt::launch(chunk_gradient_channel_portable<kDim, kDelta>, grids.gradient,
                 gradient_threads(kDim), params);
  else
    simt::launch(chunk_gradient_token_portable<kDim, kDelta>, grids.gradient,
                 gradient_threads(kDim), params);
}

template <int kDim>
void launch_dim(const linattn::cuda::ChunkGradientParams& params,
                const linattn::cuda::ChunkGradientGrids& grids, int warps) {
  const bool channel = params.chunk.problem.gate == linattn::Gate::channel;
  if (channel && params.chunk.delta) return launch_rows<kDim, true, true>(params, grids, warps);
  if (channel) return launch_rows<kDim, true, false>(params, grids, warps);
  if (params.chunk.delta) return launch_rows<kDim, false, true>(params, grids, warps);
  launch_rows<kDim, false, false>(params, grids, warps);
}

// What chunk_index_portable writes.
void number_chunks(const linattn::cuda::ChunkParams& p) {
  p.chunk_begin[0] = 0;
  for (int64_t n = 0; n < p.problem.num_sequences; ++n) {
    const auto range = linattn::cuda::bounded_range(p.problem, p.args, n);
    p.chunk_begin[n + 1] =
        p.chunk_begin[n] + (range.length() + linattn::cuda::kChunk - 1) / linattn::cuda::kChunk;
  }
}

bool run_chunked(Call& call, int num_sms = 1) {
  using namespace linattn::cuda;
  linattn::Problem problem;
  if (!plan(call, &problem)) return false;
  linattn::DeviceFacts facts = facts_of(90);
  facts.num_sms = num_sms;
  const std::string reason = chunk_gradient_reject(problem, facts);
  CHECK_THAT(reason.empty(), "%s", reason.c_str());
  if (!reason.empty()) return false;
  linattn_args args = args_of(call);
  const int64_t bytes = chunk_gradient_workspace(problem);
  std::vector<unsigned char> workspace(static_cast<size_t>(bytes) + 512, kPoison);
  unsigned char* begin =
      workspace.data() + (256 - reinterpret_cast<uintptr_t>(workspace.data()) % 256);
  args.workspace = begin;
  const ChunkGradientParams params = chunk_gradient_params(problem, facts, args);
  const ChunkGradientGrids grids = chunk_gradient_grids(problem, facts);
  const int warps = chunk_gradient_warps(problem, facts);
  if (grids.index > 0) number_chunks(params.chunk);
  const int dim = chunk_gradient_dim(problem);
  if (dim == 64)
    launch_dim<64>(params, grids, warps);
  else
    launch_dim<128>(params, grids, warps);
  const BackwardParams sums = chunk_gradient_sums(params);
  simt::launch(backward_gate_sums_portable<0>, grids.gate_sums, 256, sums);
  for (const unsigned char* at = begin + bytes; at < workspace.data() + workspace.size(); ++at)
    CHECK_THAT(*at == kPoison, "byte %td past the workspace changed", at - begin - bytes);
  return true;
}

// q, k, v and do in a narrow type; gates, beta and states as they are.
void narrow(Call& call, int32_t type) {
  for (Name name : {kQ, kK, kV, kDo}) call[name] = convert(call[name], type);
}

double worst_seen = 0;

void compare(Call& call, const char* what, double tolerance = 1e-2) {
  Call oracle = call, other = call;
  if (!run_chunked(call) || !run(oracle, "reference")) return;
  // Threads the other way round, copies at the last moment: the same bits, or a barrier is missing.
  simt::backwards = simt::late_copies = true;
  run_chunked(other);
  simt::backwards = simt::late_copies = false;
  for (Name name : kGradients)
    CHECK_THAT(same_bits(call[name], other[name]), "tensor %d depends on the order of threads: %s",
               name, what);
  for (size_t i = 0; i < std::size(kGradients); ++i) {
    const Tensor& t = call[kGradients[i]];
    if (t.type == LINATTN_NONE) continue;
    const double e = error(t.values(), oracle[kGradients[i]].values());
    CHECK_THAT(e <= tolerance, "%s is off by %.2e: %s", kGradientNames[i], e, what);
    worst_seen = std::max(worst_seen, e);
  }
}

void families() {
  uint32_t seed = 1;
  const std::pair<int64_t, int64_t> dims[] = {{64, 64}, {40, 33}, {64, 20}};
  for (Case c : all_cases()) {
    c.tokens = 40, c.batch = 1, c.heads = 1, c.group = seed % 3 == 0 ? 2 : 1;
    c.dim_k = dims[seed % 3].first, c.dim_v = dims[seed % 3].second;
    Call call = backward_of(c, ++seed);
    narrow(call, LINATTN_BF16);
    // A sum over all tokens may cancel to a number that is small beside its terms.
    compare(call, text(c).c_str(), 1e-2);
  }
}

// Lengths around the chunk and its halves, dimensions around tiles and slabs.
void sizes() {
  for (const int32_t family : {LINATTN_KDA, LINATTN_GDN, LINATTN_GLA, LINATTN_SIMPLE_GLA}) {
    Case c;
    c.family = family;
    c.gate =
        family == LINATTN_KDA || family == LINATTN_GLA ? LINATTN_GATE_CHANNEL : LINATTN_GATE_HEAD;
    c.beta = is_delta(c), c.batch = 1, c.heads = 1, c.group = 1;
    for (const int64_t tokens : {0, 1, 7, 8, 9, 16, 17, 24, 31, 32, 33, 64, 65}) {
      c.tokens = tokens, c.dim_k = 32, c.dim_v = 32;
      Call call = backward_of(c, static_cast<uint32_t>(tokens) + 3);
      narrow(call, LINATTN_BF16);
      compare(call, ("tokens " + std::to_string(tokens)).c_str());
    }
    for (const auto& [k, v] :
         {std::pair<int64_t, int64_t>{17, 5}, {128, 128}, {100, 256}, {63, 72}}) {
      c.tokens = 50, c.dim_k = k, c.dim_v = v;
      Call call = backward_of(c, static_cast<uint32_t>(k + v));
      narrow(call, LINATTN_BF16);
      compare(call, ("K " + std::to_string(k) + " V " + std::to_string(v)).c_str());
    }
  }
}

// What is refused, and why; the problems next to it are right.
void refusals() {
  const auto reason_of = [](int32_t family, int32_t type, int64_t dim_k, int64_t dim_v) {
    Case c;
    c.family = family, c.beta = family == LINATTN_GDN, c.gate = LINATTN_GATE_HEAD;
    c.batch = 1, c.tokens = 70, c.heads = 1, c.group = 1, c.dim_k = dim_k, c.dim_v = dim_v;
    Call call = backward_of(c, 3);
    narrow(call, type);
    linattn::Problem problem;
    if (!plan(call, &problem)) return std::string("no plan");
    std::string reason = linattn::cuda::chunk_gradient_reject(problem, facts_of(90));
    if (reason.empty()) compare(call, "next to what is refused");
    return reason;
  };
  for (const int32_t family : {LINATTN_GDN, LINATTN_SIMPLE_GLA}) {
    const auto expect = [&](int32_t type, int64_t dim_k, int64_t dim_v, const char* wanted) {
      const std::string reason = reason_of(family, type, dim_k, dim_v);
      CHECK_THAT(reason == wanted, "K %d V %d: '%s'", static_cast<int>(dim_k),
                 static_cast<int>(dim_v), reason.c_str());
    };
    expect(LINATTN_BF16, 1, 1, "takes K of 16 and more, q has K = 1");
    expect(LINATTN_BF16, 15, 64, "takes K of 16 and more, q has K = 15");
    expect(LINATTN_BF16, 16, 1, "");
    expect(LINATTN_BF16, 129, 16, "takes K up to 128, q has K = 129");
    expect(LINATTN_F16, 64, 64, "takes bfloat16, q is float16");
    expect(LINATTN_F32, 64, 64, "takes bfloat16, q is float32");
  }
}

// Rows with an odd number of elements between them, which allow no wide accesses; and whichever
// outputs are asked for. The same bits.
void layouts() {
  for (const int32_t family : {LINATTN_KDA, LINATTN_GDN}) {
    Case c{.family = family, .norm = true};
    c.gate = family == LINATTN_KDA ? LINATTN_GATE_CHANNEL : LINATTN_GATE_HEAD;
    c.gate_form = LINATTN_GATE_RAW_SOFTPLUS, c.A_log = c.dt_bias = c.varlen = true;
    c.tokens = 40, c.heads = 1, c.group = 2, c.dim_k = 64, c.dim_v = 32;
    Call packed = backward_of(c, 5);
    narrow(packed, LINATTN_BF16);
    Call odd = packed;
    for (Name name : {kQ, kK, kV, kG, kDo, kDq, kDk, kDv, kDg}) {
      Tensor& t = odd[name];
      if (t.size.size() < 4) continue;
      std::vector<int64_t> wide = t.size;
      wide.back() += 1;
      Tensor copy = make(t.type, wide);
      copy.size = t.size;
      for (int64_t i = 0; i < t.count(); ++i) copy.set(i, t.get(i));
      t = copy;
    }
    run_chunked(packed), run_chunked(odd);
    for (Name name : kGradients) CHECK_THAT(same_bits(packed[name], odd[name]), "tensor %d", name);
    for (Name name : kGradients) {
      Call some = packed;
      for (Name other : kGradients)
        if (other != name) some[other] = {};
      run_chunked(some, 200);
      CHECK_THAT(same_bits(packed[name], some[name]), "tensor %d", name);
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
      const double values[] = {0,
                               -1e-8,
                               -5,
                               -30,
                               -1e4,
                               -double{INFINITY},
                               token % 2 ? -5.0 : 0.0,
                               uniform(random) < 0.2 ? -double{INFINITY} : weak,
                               (token / 5 + i) % 2 ? -8 : weak,
                               uniform(random) < 0.3 ? -1e4 : weak,
                               token % 7 == 3 ? -40 : weak};
      g.set(i, values[pattern]);
    }
  };
  for (const auto& [family, gate] : {std::pair{LINATTN_KDA, LINATTN_GATE_CHANNEL},
                                     {LINATTN_GDN, LINATTN_GATE_HEAD},
                                     {LINATTN_GLA, LINATTN_GATE_CHANNEL},
                                     {LINATTN_SIMPLE_GLA, LINATTN_GATE_HEAD}})
    for (int pattern = 0; pattern < 11; ++pattern) {
      Case c;
      c.family = family, c.gate = gate, c.beta = is_delta(c);
      c.batch = 1, c.tokens = 70, c.heads = 1, c.group = 1, c.dim_k = 32, c.dim_v = 32;
      Call call = backward_of(c, static_cast<uint32_t>(pattern));
      std::mt19937 random(static_cast<uint32_t>(pattern));
      fill(call[kG], pattern, random);
      narrow(call, LINATTN_BF16);
      compare(call, ("gate pattern " + std::to_string(pattern) + ", " + text(c)).c_str());
    }
}

// Text repeats tokens, so keys repeat; with no decay at all nothing is forgotten either.
void repeated_keys() {
  std::normal_distribution<double> normal;
  for (const int32_t family : {LINATTN_DELTA, LINATTN_KDA})
    for (const double spread : {0.0, 0.05})
      for (const double beta : {0.0, 0.5, 1.0, 1.7, 2.0}) {
        std::mt19937 random(6);
        Case c;
        c.family = family;
        c.gate = family == LINATTN_KDA ? LINATTN_GATE_CHANNEL : LINATTN_GATE_NONE;
        c.batch = 1, c.tokens = 200, c.heads = 1, c.group = 1, c.dim_k = 64, c.dim_v = 32;
        Call call = backward_of(c, 3);
        repeat_keys(call, c, spread, beta, random, normal);
        narrow(call, LINATTN_BF16);
        compare(
            call,
            ("keys " + std::to_string(spread) + " apart, beta " + std::to_string(beta)).c_str());
      }
}

}  // namespace

int main() {
  families();
  sizes();
  refusals();
  layouts();
  gates();
  repeated_keys();
  std::printf("largest error %.2e\n", worst_seen);
  return check::finish();
}
