// The portable chunk forward's kernels, run lane by lane on the host, against the oracle. Needs
// neither nvcc nor a GPU.
#include "../cpp/cases.h"
#include "cuda/portable/chunk_forward.plan.h"
#include "cuda/portable/chunk_prepare.cuh"
#include "cuda/portable/chunk_scan.cuh"
#include "emulated.h"
#include "simt/simt.h"

using namespace call;

namespace {

namespace cuda = linattn::cuda;
using linattn::Type;

// What the library's tables of kernels do, for one problem.
template <class F>
auto with_instance(const linattn::Problem& p, F&& f) {
  const auto by_update = [&]<Type kType, int kDim, bool kChannel>() {
    return p.update == linattn::Update::delta
               ? f.template operator()<kType, kDim, kChannel, true>()
               : f.template operator()<kType, kDim, kChannel, false>();
  };
  const auto by_gate = [&]<Type kType, int kDim>() {
    return p.gate == linattn::Gate::channel ? by_update.template operator()<kType, kDim, true>()
                                            : by_update.template operator()<kType, kDim, false>();
  };
  const auto by_dim = [&]<Type kType>() {
    return cuda::chunk_forward_dim(p) == 64 ? by_gate.template operator()<kType, 64>()
                                            : by_gate.template operator()<kType, 128>();
  };
  return p.q.type == Type::f32    ? by_dim.template operator()<Type::f32>()
         : p.q.type == Type::bf16 ? by_dim.template operator()<Type::bf16>()
                                  : by_dim.template operator()<Type::f16>();
}

cuda::ScanBytes scan_bytes(const linattn::Problem& p) {
  return [&p](const cuda::ChunkScanShape& shape) {
    return with_instance(p, [&]<Type kType, int kDim, bool kChannel, bool kDelta>() -> int64_t {
      return shape.parts == 2 ? cuda::chunk::Stage<kType, kDim, kChannel, kDelta, 2>::shared_bytes(
                                    shape.groups, shape.stages)
                              : cuda::chunk::Stage<kType, kDim, kChannel, kDelta, 1>::shared_bytes(
                                    shape.groups, shape.stages);
    });
  };
}

bool run_chunk(Call& call, int num_sms = 1) {
  linattn::Problem p;
  if (!plan(call, &p)) return false;
  linattn::DeviceFacts facts = facts_of(90);
  facts.num_sms = num_sms, facts.shared_bytes_block = 99 << 10;
  const cuda::ScanBytes bytes = scan_bytes(p);
  const std::string reason = cuda::chunk_forward_reject(p) + cuda::chunk_scan_reject(facts, bytes);
  CHECK_THAT(reason.empty(), "refused: %s", reason.c_str());
  if (!reason.empty()) return false;
  linattn_args args = args_of(call);
  const auto size = static_cast<size_t>(cuda::chunk_forward_workspace(p));
  std::vector<unsigned char> workspace(size + 512, kPoison);
  unsigned char* begin =
      workspace.data() + (256 - reinterpret_cast<uintptr_t>(workspace.data()) % 256);
  args.workspace = begin;
  const cuda::ChunkScanShape shape = cuda::chunk_scan_shape(p, facts, bytes);
  const cuda::ChunkParams params = cuda::chunk_forward_params(p, shape, args);
  if (p.varlen()) simt::launch(cuda::chunk_index_portable<0>, 1, 1024, params);
  with_instance(p, [&]<Type kType, int kDim, bool kChannel, bool kDelta>() {
    simt::launch(cuda::chunk_prepare_portable<kType, kDim, kChannel>, cuda::chunk_prepare_grid(p),
                 cuda::chunk_prepare_block(p), params);
    const int64_t grid = cuda::chunk_scan_grid(p, shape.groups);
    if (shape.parts == 2)
      simt::launch(cuda::chunk_scan_portable<kType, kDim, kChannel, kDelta, 2>, grid,
                   shape.threads(), params);
    else
      simt::launch(cuda::chunk_scan_portable<kType, kDim, kChannel, kDelta, 1>, grid,
                   shape.threads(), params);
    return true;
  });
  for (const unsigned char* at = begin + size; at < workspace.data() + workspace.size(); ++at)
    CHECK_THAT(*at == kPoison, "byte %td past the workspace changed", at - begin);
  return true;
}

double worst_of[16] = {};  // by type

double tolerance_of(int32_t type, bool channel) {
  return type == LINATTN_F32 ? 1e-5 : type == LINATTN_F16 && !channel ? 2e-3 : 6e-3;
}

Call typed(const Call& wide, int32_t type) {
  Call call = wide;
  for (Name name : {kQ, kK, kV, kO, kStates})
    if (wide[name].type != LINATTN_NONE) call[name] = convert(wide[name], type);
  return call;
}

// `few`: as on a card with so many SMs that the scan is cut into narrow slabs.
void compare(const Call& wide, int32_t type, const std::string& what, double tolerance = 0,
             bool few = false) {
  Call call = typed(wide, type), oracle = call, other = call;
  if (!run_chunk(call, few ? 200 : 1) || !run(oracle, "reference")) return;
  // Threads the other way round, copies at the last moment: the same bits, or a barrier is missing.
  simt::backwards = simt::late_copies = true;
  run_chunk(other, few ? 200 : 1);
  simt::backwards = simt::late_copies = false;
  if (tolerance == 0) tolerance = tolerance_of(type, call[kG].size.size() == 4);
  for (Name name : {kO, kHt, kStates}) {
    if (call[name].type == LINATTN_NONE) continue;
    CHECK_THAT(same_bits(call[name], other[name]), "tensor %d depends on the order of threads: %s",
               name, what.c_str());
    const double e = error(call[name].values(), oracle[name].values());
    CHECK_THAT(e <= tolerance, "tensor %d, type %d is off by %.2e: %s", name, type, e,
               what.c_str());
    worst_of[type] = std::max(worst_of[type], e);
  }
}

constexpr int32_t kTypes[] = {LINATTN_F32, LINATTN_BF16, LINATTN_F16};

void families() {
  uint32_t seed = 1;
  const std::pair<int64_t, int64_t> dims[] = {{64, 64}, {40, 33}, {64, 20}, {128, 24}};
  for (Case c : all_cases()) {
    c.tokens = 45, c.batch = 1, c.heads = 1, c.group = seed % 3 == 0 ? 2 : 1;
    c.dim_k = dims[seed % 4].first, c.dim_v = dims[seed % 4].second;
    const Call call = forward_of(c, ++seed);
    compare(call, LINATTN_F32, text(c));
    if (seed % 3 == 0) compare(call, LINATTN_BF16, text(c));
    if (seed % 3 == 1 && c.gate != LINATTN_GATE_CHANNEL) compare(call, LINATTN_F16, text(c));
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
    for (const int64_t tokens : {0, 1, 7, 8, 9, 16, 17, 31, 32, 33, 64, 97}) {
      c.tokens = tokens, c.dim_k = 32, c.dim_v = 16;
      compare(forward_of(c, static_cast<uint32_t>(tokens) + 3), LINATTN_F32,
              "tokens " + std::to_string(tokens), 0, tokens % 2 == 0);
    }
    for (const auto& [k, v] : {std::pair<int64_t, int64_t>{1, 1}, {17, 5}, {128, 128}, {100, 72}}) {
      c.tokens = 50, c.dim_k = k, c.dim_v = v;
      compare(forward_of(c, static_cast<uint32_t>(k + v)), LINATTN_F32,
              "K " + std::to_string(k) + " V " + std::to_string(v));
    }
  }
}

// Rows of an odd number of elements, which allow no wide accesses: the same bits. States before
// every 64 tokens.
void layouts() {
  for (const int32_t family : {LINATTN_KDA, LINATTN_GDN})
    for (const int32_t type : kTypes) {
      Case c{.family = family, .norm = true};
      c.gate = family == LINATTN_KDA ? LINATTN_GATE_CHANNEL : LINATTN_GATE_HEAD;
      c.varlen = true, c.tokens = 70, c.heads = 1, c.group = 2, c.dim_k = 64, c.dim_v = 32;
      Call wide = forward_of(c, 5);
      wide[kStates] = make(LINATTN_F32, std::vector<int64_t>{1, 5, 2, c.dim_k, c.dim_v});
      Call packed = typed(wide, type), odd = packed;
      compare(wide, type, "packed, with states");
      for (Name name : {kQ, kK, kV, kG, kO}) {
        Tensor& t = odd[name];
        if (t.size.size() < 4) continue;
        std::vector<int64_t> padded = t.size;
        padded.back() += 1;
        Tensor copy = make(t.type, padded);
        copy.size = t.size;
        for (int64_t i = 0; i < t.count(); ++i) copy.set(i, t.get(i));
        t = copy;
      }
      run_chunk(packed), run_chunk(odd);
      for (Name name : {kO, kHt, kStates})
        CHECK_THAT(same_bits(packed[name], odd[name]), "tensor %d, type %d", name, type);
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
                               token % 11 == 7 ? -double{INFINITY} : 10 * weak};
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
      c.batch = 1, c.tokens = 100, c.heads = 1, c.group = 1, c.dim_k = 32, c.dim_v = 16;
      Call call = forward_of(c, static_cast<uint32_t>(pattern));
      std::mt19937 random(static_cast<uint32_t>(pattern));
      fill(call[kG], pattern, random);
      for (const int32_t type : {LINATTN_F32, LINATTN_BF16})
        compare(call, type, "gate pattern " + std::to_string(pattern) + ", " + text(c));
    }
}

// Text repeats tokens, so keys repeat; with no decay at all nothing is forgotten either.
void repeated_keys() {
  std::normal_distribution<double> normal;
  for (const int32_t family : {LINATTN_DELTA, LINATTN_KDA})
    for (const double spread : {0.0, 0.05})
      for (const double beta : {1.0, 1.7, 2.0}) {
        std::mt19937 random(6);
        Case c;
        c.family = family;
        c.gate = family == LINATTN_KDA ? LINATTN_GATE_CHANNEL : LINATTN_GATE_NONE;
        c.batch = 1, c.tokens = 600, c.heads = 1, c.group = 1, c.dim_k = 64, c.dim_v = 16;
        Call call = forward_of(c, 3);
        repeat_keys(call, c, spread, beta, random, normal);
        const std::string what =
            "keys " + std::to_string(spread) + " apart, beta " + std::to_string(beta);
        compare(call, LINATTN_F32, what, beta > 1 ? 3e-5 : 1e-5);
        const double narrow = spread == 0 ? (beta <= 1  ? 1.2e-2
                                             : beta < 2 ? 3e-2
                                                        : 2e-1)
                                          : (beta <= 1  ? 7e-3
                                             : beta < 2 ? 1.2e-2
                                                        : 3e-2);
        if (family == LINATTN_DELTA) compare(call, LINATTN_BF16, what, narrow);
      }
}

// What is refused, and why.
void refusals() {
  const auto expect = [](int32_t type, int64_t dim_k, const char* wanted) {
    Case c;
    c.batch = 1, c.heads = 1, c.group = 1, c.dim_k = dim_k;
    Call call = typed(forward_of(c, 1), type);
    linattn::Problem p;
    if (!plan(call, &p)) return;
    const std::string reason = cuda::chunk_forward_reject(p);
    CHECK_THAT(reason == wanted, "type %d K %d: '%s'", type, static_cast<int>(dim_k),
               reason.c_str());
  };
  expect(LINATTN_F32, 128, "");
  expect(LINATTN_F32, 129, "takes float32 with K up to 128, q has K = 129");
  expect(LINATTN_F16, 15, "takes float16 with K of 16 and more, q has K = 15");
  expect(LINATTN_F16, 16, "");
  expect(LINATTN_BF16, 256, "");
}

}  // namespace

int main() {
  refusals();
  families();
  sizes();
  layouts();
  gates();
  repeated_keys();
  std::printf("largest error: f32 %.2e, bf16 %.2e, f16 %.2e\n", worst_of[LINATTN_F32],
              worst_of[LINATTN_BF16], worst_of[LINATTN_F16]);
  return check::finish();
}
