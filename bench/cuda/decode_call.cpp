// What a decode call costs the host through the C interface, the launch included: the best average
// of calls that find the stream's queue empty. CSV on standard output. Kernel times are those of
// `linattn bench --device cuda`.
#include <chrono>

#include "decode_setup.h"

namespace {

void check(int32_t status, const char* family) {
  if (status == LINATTN_OK) return;
  std::fprintf(stderr, "%s: %s\n", family, linattn_last_error());
  std::exit(1);
}

void measure(const bench::Family& family, const bench::Size& size) {
  bench::Decode decode(family, size);
  linattn_plan_t plan = nullptr;
  check(linattn_plan(&decode.problem, {LINATTN_DEVICE_CUDA, 0}, &plan), family.name);
  cudaStream_t stream;
  GPU_CHECK(cudaStreamCreate(&stream));
  constexpr int kCalls = 200;
  double best_us = 1e30;
  for (int round = 0; round < 20; ++round) {
    const auto begin = std::chrono::steady_clock::now();
    for (int i = 0; i < kCalls; ++i) check(linattn_run(plan, &decode.args, stream), family.name);
    const auto end = std::chrono::steady_clock::now();
    GPU_CHECK(cudaStreamSynchronize(stream));
    best_us =
        std::min(best_us, std::chrono::duration<double, std::micro>(end - begin).count() / kCalls);
  }
  GPU_CHECK(cudaStreamDestroy(stream));
  std::printf("%s,%lld,%lld,%s,%.2f\n", family.name, static_cast<long long>(size.sequences),
              static_cast<long long>(size.heads_v), linattn_plan_implementation(plan), best_us);
  linattn_plan_destroy(plan);
}

}  // namespace

int main() {
  cudaDeviceProp card;
  GPU_CHECK(cudaGetDeviceProperties(&card, 0));
  std::printf("# %s, linattn %s, %s\n", card.name, linattn_version(), linattn_build_info());
  std::printf("family,N,HV,implementation,call_us\n");
  for (const bench::Family& family : bench::kFamilies)
    for (const int n : {1, 16}) measure(family, {.sequences = n, .heads_v = 64});
  return 0;
}
