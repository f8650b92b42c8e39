// Decode on the GPU through the C interface: the calls of decode_calls.h against the oracle, and
// what only a device can show. Exit 77, which CTest counts as skipped, where there is none.
#include "device_run.h"

using namespace call;

namespace {

void repeats_bit_for_bit() {
  for (int32_t family : kFamilies) {
    Case c = family_case(family);
    c.batch = 5, c.tokens = 4;
    Call first = recurrent(c, 11), second = first;
    if (!run_on_device(first, How::direct) || !run_on_device(second, How::graph)) return;
    CHECK(same_bits(first[kO], second[kO]) && same_bits(first[kHt], second[kHt]));
  }
}

// More sequences and heads than any grid axis but x takes.
void many_heads() {
  Case c = family_case(LINATTN_GDN);
  c.batch = 70001, c.tokens = 1, c.dim_k = 4, c.dim_v = 4, c.v_first = true;
  compare_with_oracle({"70001 sequences, 2 heads", recurrent(c, 12)},
                      [](Call& call) { return run_on_device(call, How::direct); });
}

// One step in the last of 8192 slots, 2^32 elements into the pool, equals the step in the first.
void far_slot() {
  constexpr int64_t kSlots = 8192, kHeads = 32, kDim = 128, kSlot = kHeads * kDim * kDim;
  size_t free_bytes = 0, total_bytes = 0;
  CUDA_OK(cudaMemGetInfo(&free_bytes, &total_bytes));
  if (free_bytes < static_cast<size_t>(kSlots * kSlot * 4) + (1ull << 30)) {
    std::printf("far_slot skipped: it needs 18 GB\n");
    return;
  }
  for (bool v_first : {false, true}) {
    Case c = family_case(LINATTN_KDA);
    c.batch = 1, c.tokens = 1, c.heads = kHeads, c.group = 1, c.dim_v = kDim, c.v_first = v_first;
    c.initial_state = true;
    Call near = recurrent(c, 13);
    Call far = near;
    if (!run_on_device(near, How::direct)) return;
    far[kHt] = {};
    far[kH0].size[0] = kSlots;
    far[kH0].stride[0] = kSlot;
    far[kStateIndices] = make(LINATTN_I64, {kSlots - 1.0});
    describe_on_device(far, 0);
    linattn_plan_t plan = nullptr;
    const int32_t planned = linattn_plan(&far.problem, {LINATTN_DEVICE_CUDA, 0}, &plan);
    CHECK_THAT(planned == LINATTN_OK, "%s", linattn_last_error());
    if (planned != LINATTN_OK) return;
    void* memory = nullptr;
    CUDA_OK(cudaMalloc(&memory, kSlots * kSlot * 4));
    char* pool = static_cast<char*>(memory);
    CUDA_OK(cudaMemset(pool, 0xff, kSlots * kSlot * 4));
    char* last = pool + (kSlots - 1) * kSlot * 4;
    CUDA_OK(cudaMemcpy(last, far[kH0].data.data(), kSlot * 4, cudaMemcpyHostToDevice));
    std::unique_ptr<DeviceCopy> copies[kNames];
    linattn_args args{};
    args.struct_size = sizeof(args);
    const void** pointers = &args.q;
    for (int name = 0; name < kNames; ++name)
      if (name != kH0 && far.tensor[name].type != LINATTN_NONE) {
        copies[name] = std::make_unique<DeviceCopy>(far.tensor[name], 0);
        pointers[name] = copies[name]->data();
      }
    args.initial_state = pool;
    CHECK(linattn_run(plan, &args, nullptr) == LINATTN_OK);
    CUDA_OK(cudaDeviceSynchronize());
    copies[kO]->read_back(&far[kO]);
    CHECK(same_bits(far[kO], near[kO]));
    std::vector<unsigned char> state(kSlot * 4);
    CUDA_OK(cudaMemcpy(state.data(), last, state.size(), cudaMemcpyDeviceToHost));
    CHECK(std::memcmp(state.data(), near[kHt].data.data(), state.size()) == 0);
    CUDA_OK(cudaFree(pool));
    linattn_plan_destroy(plan);
  }
}

// A stream of another kind of handle makes the launch fail; the text names it, the process lives.
void failures_have_a_text() {
  Call call = recurrent(family_case(LINATTN_KDA), 14);
  describe_on_device(call, 99);
  linattn_plan_t plan = nullptr;
  CHECK(linattn_plan(&call.problem, {LINATTN_DEVICE_CUDA, 99}, &plan) == LINATTN_UNSUPPORTED);
  CHECK_THAT(std::strstr(linattn_last_error(), "cuda:99 does not exist") != nullptr, "%s",
             linattn_last_error());
}

}  // namespace

int main(int count, char** arguments) {
  const int devices = devices_or_skip();
  // `quick` keeps the grid small enough for the sanitizers.
  const bool quick = count > 1 && std::string(arguments[1]) == "quick";
  int number = 0;
  for (const DecodeCall& decode : decode_calls(!quick)) {
    if (quick && number++ % 7 != 0) continue;
    compare_with_oracle(decode, [](Call& call) { return run_on_device(call, How::direct); });
    if (quick) continue;
    const How how = number++ % 2 ? How::graph : How::misaligned;
    compare_with_oracle(decode, [&](Call& call) { return run_on_device(call, how); });
  }
  repeats_bit_for_bit();
  failures_have_a_text();
  if (!quick) {
    many_heads();
    far_slot();
  }
  if (devices > 1)
    compare_with_oracle({"second device", recurrent(family_case(LINATTN_KDA), 15)},
                        [](Call& call) { return run_on_device(call, How::direct, 1); });
  else
    std::printf("second device skipped: this machine has one\n");
  return check::finish();
}
