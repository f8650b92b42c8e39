// Times decode through the C interface on the sizes of the tables in docs/kernels/decode.md:
// kernel time by graph replay, and what a call costs the host. CSV on standard output.
#include <chrono>

#include "decode_setup.h"

namespace {

void measure(const bench::Family& family, const bench::Size& size) {
  bench::Decode decode(family, size);
  linattn_plan_t plan = nullptr;
  if (linattn_plan(&decode.problem, {LINATTN_DEVICE_CUDA, 0}, &plan) != LINATTN_OK) {
    std::fprintf(stderr, "%s: %s\n", family.name, linattn_last_error());
    std::exit(1);
  }
  const auto launch = [&](cudaStream_t stream) {
    if (linattn_run(plan, &decode.args, stream) != LINATTN_OK) {
      std::fprintf(stderr, "%s: %s\n", family.name, linattn_last_error());
      std::exit(1);
    }
  };
  const double floor_ms = decode.bytes / bench::kCopyRate * 1e3;
  const gpu::Timing time = gpu::graph_time(floor_ms > 0.2 ? 10 : 50, 9, launch);

  cudaStream_t stream;
  GPU_CHECK(cudaStreamCreate(&stream));
  constexpr int kCalls = 200;
  const auto begin = std::chrono::steady_clock::now();
  for (int i = 0; i < kCalls; ++i) launch(stream);
  const auto end = std::chrono::steady_clock::now();
  GPU_CHECK(cudaStreamSynchronize(stream));
  GPU_CHECK(cudaStreamDestroy(stream));
  const double call_us = std::chrono::duration<double, std::micro>(end - begin).count() / kCalls;

  const char* state = size.state_type == LINATTN_F32    ? "f32"
                      : size.state_type == LINATTN_BF16 ? "bf16"
                                                        : "f16";
  std::printf("%s,%lld,%lld,%lld,%lld,%lld,%s,%s,%d,%s,%.5f,%.5f,%.5f,%.3f,%.0f,%.2f\n",
              family.name, static_cast<long long>(size.sequences),
              static_cast<long long>(size.heads_v), static_cast<long long>(size.dim_k),
              static_cast<long long>(size.dim_v), static_cast<long long>(size.tokens), state,
              size.v_first ? "VK" : "KV", size.shuffled, linattn_plan_implementation(plan),
              time.best_ms, time.median_ms, floor_ms, floor_ms / time.median_ms, decode.bytes,
              call_us);
  std::fflush(stdout);
  linattn_plan_destroy(plan);
}

}  // namespace

int main() {
  cudaDeviceProp card;
  GPU_CHECK(cudaGetDeviceProperties(&card, 0));
  int driver = 0;
  GPU_CHECK(cudaDriverGetVersion(&driver));
  std::printf("# %s, %d SMs, driver %d, linattn %s, %s\n", card.name, card.multiProcessorCount,
              driver, linattn_version(), linattn_build_info());
  std::printf("# one decode step in a pool, bf16 tokens; floor: bytes over %.2f TB/s\n",
              bench::kCopyRate / 1e12);
  std::printf(
      "family,N,HV,K,V,T,state,layout,shuffled,implementation,best_ms,median_ms,floor_ms,"
      "share_of_floor,bytes,call_us\n");
  const bench::Family &kda = bench::kFamilies[0], &gdn = bench::kFamilies[1];
  for (const bench::Family* family : {&kda, &gdn})
    for (const bool v_first : {true, false}) {
      for (const auto& [n, hv] :
           {std::pair{1, 64}, {16, 64}, {64, 64}, {256, 32}, {256, 64}, {256, 128}})
        measure(*family, {.sequences = n, .heads_v = hv, .v_first = v_first});
      for (const int n : {16, 64, 256})
        measure(*family, {.sequences = n,
                          .heads_v = n == 256 ? 128 : 64,
                          .state_type = LINATTN_BF16,
                          .v_first = v_first});
    }
  for (const bench::Family& family : bench::kFamilies)
    for (const bool v_first : {true, false})
      measure(family, {.sequences = 256, .heads_v = 128, .v_first = v_first, .shuffled = true});
  for (const int dim : {64, 256})
    for (const bool v_first : {true, false})
      measure(kda,
              {.sequences = 128, .heads_v = 64, .dim_k = dim, .dim_v = dim, .v_first = v_first});
  for (const int tokens : {2, 4, 8})
    measure(kda, {.sequences = 256, .heads_v = 128, .tokens = tokens});
  return 0;
}
