// The chunk kernels on the GPU through the C interface against the oracle. `quick` is small enough
// for the sanitizers. Exit 77, which CTest counts as skipped, where there is no device.
#include "device_run.h"

using namespace call;

namespace {

// Every family, gate form and layout: lengths around a chunk, K up to 256 (fp32: 128), packed
// sequences, slots.
std::vector<DecodeCall> chunk_calls(bool quick) {
  std::vector<DecodeCall> calls;
  uint32_t seed = 1;
  const std::pair<int64_t, int64_t> dims[] = {{64, 48}, {128, 32}, {40, 72}, {256, 16}, {128, 128}};
  const int64_t lengths[] = {33, 64, 5, 100, 32};
  for (Case c : all_cases()) {
    if (++seed; quick && seed % 4 != 0) continue;
    c.dim_k = dims[seed % 5].first, c.dim_v = dims[seed % 5].second;
    c.tokens = lengths[seed / 4 % 5], c.heads = 1, c.batch = 1 + seed % 2;
    const bool half = seed % 3 == 0 && c.gate != LINATTN_GATE_CHANNEL;
    const bool wide = seed % 3 == 1 && c.dim_k <= 128;
    const bool pool = seed % 5 == 0 && !c.varlen;
    if (pool) c.initial_state = false;
    Call call = forward_of(c, seed);
    set_token_type(call, wide ? LINATTN_F32 : half ? LINATTN_F16 : LINATTN_BF16);
    if (pool) {
      call[kHt] = {};
      call[kH0] = padded_pool(c, LINATTN_F32, 4, 64, seed);
      call[kStateIndices] = make(LINATTN_I64, {3, -1});
      if (c.batch == 1) call[kStateIndices] = make(LINATTN_I64, {2});
    }
    // States come from products of numbers of q's type.
    calls.push_back({"chunk: " + text(c), call, wide ? 1e-5 : 6e-3});
  }
  return calls;
}

}  // namespace

int main(int count, char** arguments) {
  const int devices = devices_or_skip();
  const bool quick = count > 1 && std::string(arguments[1]) == "quick";
  int number = 0;
  for (const DecodeCall& chunk : chunk_calls(quick)) {
    const How how = quick || number++ % 2 ? How::direct : How::graph;
    compare_with_oracle(chunk, [&](Call& call) { return run_on_device(call, how, 0, quick); });
  }
  if (devices > 1) {
    for (const DecodeCall& chunk : chunk_calls(true))
      compare_with_oracle(chunk, [](Call& call) { return run_on_device(call, How::direct, 1); });
  } else {
    std::printf("second device skipped: this machine has one\n");
  }
  return check::finish();
}
