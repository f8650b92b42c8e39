// Times candidate rows of decode.config.h on the sizes that matter, past the dispatcher; with the
// argument `several` those for several tokens alone. What it
// printed for the rows in use stands in docs/kernels/decode.md.
#include "cuda/portable/decode.cuh"
#include "cuda/portable/decode.plan.h"
#include "decode_setup.h"

using namespace linattn::cuda;

namespace {

struct Candidate {
  const void* kernel;
  int variant, shape;
};

template <int kVariant, int kShape>
Candidate candidate() {
  return {reinterpret_cast<const void*>(&recurrent_forward_portable<kVariant, kShape>), kVariant,
          kShape};
}

template <int kVariant, int... kShapes>
std::vector<Candidate> candidates() {
  return {candidate<kVariant, kShapes>()...};
}

constexpr int number(bool v_first, int state, bool channel) {
  return DecodeVariant{v_first, state, true, channel}.number();
}

void launch(const Candidate& c, const DecodeChoice& choice, const DecodeParams& params,
            bool overlap, cudaStream_t stream) {
  cudaLaunchAttribute attribute = {};
  attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attribute.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(static_cast<unsigned>(choice.grid));
  config.blockDim = dim3(static_cast<unsigned>(kDecodeShapes[c.shape].threads()));
  config.stream = stream;
  config.attrs = &attribute;
  config.numAttrs = overlap;
  void* arguments[] = {const_cast<DecodeParams*>(&params)};
  GPU_CHECK(cudaLaunchKernelExC(&config, c.kernel, arguments));
}

void time_candidates(const bench::Family& family, const std::vector<Candidate>& list,
                     bench::Size size) {
  const DecodeVariant variant = decode_variant(list.front().variant);
  size.v_first = variant.v_first;
  size.state_type = variant.state == kStateF32 ? LINATTN_F32 : LINATTN_BF16;
  const bench::Decode decode(family, size);
  linattn::Problem problem;
  if (linattn::validate(decode.problem, {LINATTN_DEVICE_CUDA, 0}, &problem) != LINATTN_OK) {
    std::printf("%s\n", linattn::last_error().c_str());
    std::exit(1);
  }
  const double floor_ms = decode.bytes / bench::kCopyRate * 1e3;
  for (const Candidate& c : list) {
    const DecodeShape& shape = kDecodeShapes[c.shape];
    const int64_t slabs = (problem.dim_v + shape.tile_v() - 1) / shape.tile_v();
    DecodeChoice choice{variant, c.shape, problem.num_sequences * problem.heads_v * slabs, 0};
    choice.grid = (choice.teams + shape.teams - 1) / shape.teams;
    const DecodeParams params = decode_params(problem, decode.args, choice);
    cudaFuncAttributes attributes;
    GPU_CHECK(cudaFuncGetAttributes(&attributes, c.kernel));
    const int count = floor_ms > 0.2 ? 10 : 50;
    for (const bool overlap : {false, true}) {
      const gpu::Timing t =
          gpu::graph_time(count, 7, [&](cudaStream_t s) { launch(c, choice, params, overlap, s); });
      std::printf("%s,%lld,%lld,%lld,%s,%s,%d,%d,%d,%d,%d,%d,%d,%d,%.5f,%.5f,%.5f\n", family.name,
                  static_cast<long long>(size.sequences), static_cast<long long>(size.heads_v),
                  static_cast<long long>(size.tokens), size.v_first ? "VK" : "KV",
                  variant.state == kStateF32 ? "f32" : "bf16", c.shape, shape.lanes_v,
                  shape.columns, shape.channels, shape.teams, shape.warps_k, attributes.numRegs,
                  overlap, t.best_ms, t.median_ms, floor_ms);
    }
  }
}

}  // namespace

int main(int count, char** arguments) {
  std::printf(
      "family,N,HV,T,layout,state,shape,lanes_v,columns,channels,teams,warps_k,registers,overlap,"
      "best_ms,median_ms,floor_ms\n");
  const bench::Family& kda = bench::kFamilies[0];
  const auto kda_v = candidates<number(true, kStateF32, true), 0, 13, 14, 15>();
  const auto kda_k = candidates<number(false, kStateF32, true), 3, 17, 18, 19, 20, 21, 22>();
  const auto kda_v16 = candidates<number(true, kStateBf16, true), 1, 13, 14, 15, 16>();
  const auto kda_k16 = candidates<number(false, kStateBf16, true), 3, 17, 18, 22, 23>();
  const bool one_token = count < 2 || std::string(arguments[1]) != "several";
  for (const auto& [n, hv] : {std::pair<int64_t, int64_t>{256, 128}, {16, 64}, {1, 64}}) {
    if (!one_token) break;
    time_candidates(kda, kda_v, {n, hv});
    time_candidates(kda, kda_k, {n, hv});
    time_candidates(kda, kda_v16, {n, hv});
    time_candidates(kda, kda_k16, {n, hv});
  }
  // Several tokens.
  const auto several = candidates<number(true, kStateF32, true), 5, 24, 25, 26, 27, 28, 29>();
  const auto several16 = candidates<number(true, kStateBf16, true), 1, 5, 29>();
  const auto several_k = candidates<number(false, kStateF32, true), 3, 6>();
  for (const int tokens : {2, 4, 8}) {
    time_candidates(kda, several, {.sequences = 256, .heads_v = 128, .tokens = tokens});
    time_candidates(kda, several16, {.sequences = 256, .heads_v = 128, .tokens = tokens});
    time_candidates(kda, several_k, {.sequences = 256, .heads_v = 128, .tokens = tokens});
  }
  return 0;
}
