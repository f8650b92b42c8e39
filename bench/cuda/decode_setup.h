// A decode step of serving size in device memory: one token a sequence, states in a pool, norm and
// gate inside where the family has them, bf16 tokens.
#pragma once

#include <cmath>
#include <cstring>
#include <memory>
#include <numeric>
#include <random>
#include <string>

#include "gpu.h"
#include "linattn/linattn.h"

namespace bench {

struct Family {
  const char* name;
  int32_t family, gate, gate_form, beta_form;
  bool norm;
  int group;  // value heads per q/k head
};

inline constexpr Family kFamilies[] = {
    {"kda", LINATTN_KDA, LINATTN_GATE_CHANNEL, LINATTN_GATE_RAW_SOFTPLUS, LINATTN_BETA_SIGMOID,
     true, 1},
    {"gdn", LINATTN_GDN, LINATTN_GATE_HEAD, LINATTN_GATE_RAW_SOFTPLUS, LINATTN_BETA_SIGMOID, true,
     4},
    {"delta", LINATTN_DELTA, LINATTN_GATE_NONE, LINATTN_GATE_GIVEN, LINATTN_BETA_VALUE, true, 1},
    {"gla", LINATTN_GLA, LINATTN_GATE_CHANNEL, LINATTN_GATE_GIVEN, LINATTN_BETA_VALUE, false, 1},
    {"simple_gla", LINATTN_SIMPLE_GLA, LINATTN_GATE_HEAD, LINATTN_GATE_GIVEN, LINATTN_BETA_VALUE,
     false, 1},
    {"lightning", LINATTN_LIGHTNING, LINATTN_GATE_HEAD_CONSTANT, LINATTN_GATE_GIVEN,
     LINATTN_BETA_VALUE, false, 1},
};

struct Size {
  int64_t sequences, heads_v;
  int64_t dim_k = 128, dim_v = 128;
  int64_t tokens = 1;
  int32_t state_type = LINATTN_F32;
  bool v_first = true;
  bool shuffled = false;  // slots of the pool in random order
};

class Decode {
 public:
  Decode(const Family& f, const Size& s) {
    const int64_t N = s.sequences, HV = s.heads_v, H = HV / f.group, T = s.tokens;
    problem.struct_size = sizeof(problem);
    problem.family = f.family;
    problem.form = LINATTN_RECURRENT;
    problem.pass = LINATTN_FORWARD;
    problem.gate = f.gate;
    problem.gate_form = f.gate_form;
    problem.beta_form = f.beta_form;
    problem.flags = (f.norm ? uint32_t{LINATTN_FLAG_QK_NORM} : 0) |
                    (s.v_first ? uint32_t{LINATTN_FLAG_STATE_V_FIRST} : 0);
    problem.scale = 1 / std::sqrt(static_cast<double>(s.dim_k));
    args.struct_size = sizeof(args);
    const bool channel = f.gate == LINATTN_GATE_CHANNEL;
    args.q = add(problem.q, LINATTN_BF16, {N, T, H, s.dim_k}, 1);
    args.k = add(problem.k, LINATTN_BF16, {N, T, H, s.dim_k}, 0.08f);
    args.v = add(problem.v, LINATTN_BF16, {N, T, HV, s.dim_v}, 1);
    args.o = add(problem.o, LINATTN_BF16, {N, T, HV, s.dim_v}, 0);
    const bool raw = f.gate_form != LINATTN_GATE_GIVEN;
    const float gate = raw ? 1.0f : -0.1f;  // a given log decay is negative
    if (channel)
      args.g = add(problem.g, LINATTN_BF16, {N, T, HV, s.dim_k}, gate);
    else if (f.gate == LINATTN_GATE_HEAD)
      args.g = add(problem.g, LINATTN_BF16, {N, T, HV}, gate);
    else if (f.gate == LINATTN_GATE_HEAD_CONSTANT)
      args.g_gamma = add(problem.g_gamma, LINATTN_F32, {HV}, gate);
    if (raw) {
      args.A_log = add(problem.A_log, LINATTN_F32, {HV}, 0.3f);
      args.dt_bias = channel ? add(problem.dt_bias, LINATTN_F32, {HV, s.dim_k}, 0.5f)
                             : add(problem.dt_bias, LINATTN_F32, {HV}, 0.5f);
    }
    if (f.family == LINATTN_KDA || f.family == LINATTN_GDN || f.family == LINATTN_DELTA)
      args.beta = add(problem.beta, LINATTN_BF16, {N, T, HV}, 0.5f);
    token_bytes = bytes;
    args.initial_state =
        s.v_first ? add(problem.initial_state, s.state_type, {N, HV, s.dim_v, s.dim_k}, 1)
                  : add(problem.initial_state, s.state_type, {N, HV, s.dim_k, s.dim_v}, 1);
    bytes += bytes - token_bytes;  // read and written

    std::vector<int32_t> slots(static_cast<size_t>(N));
    std::iota(slots.begin(), slots.end(), 0);
    if (s.shuffled) std::shuffle(slots.begin(), slots.end(), std::mt19937(1));
    void* indices = add(problem.state_indices, LINATTN_I32, {N}, 0);
    GPU_CHECK(cudaMemcpy(indices, slots.data(), slots.size() * 4, cudaMemcpyHostToDevice));
    args.state_indices = indices;
  }

  linattn_problem problem{};
  linattn_args args{};
  double bytes = 0, token_bytes = 0;  // moved by one step

 private:
  // Uniform in (0, amplitude) if it is negative, else in (-amplitude, amplitude): a block of random
  // numbers, repeated, since generating gigabytes on the host takes longer than the benchmark.
  void* add(linattn_tensor& t, int32_t type, std::initializer_list<int64_t> sizes,
            float amplitude) {
    t.type = type;
    t.rank = static_cast<int32_t>(sizes.size());
    t.device_type = LINATTN_DEVICE_CUDA;
    int64_t count = 1;
    for (int axis = t.rank - 1; axis >= 0; --axis) {
      t.size[axis] = sizes.begin()[axis];
      t.stride[axis] = count;
      count *= t.size[axis];
    }
    const size_t element = type == LINATTN_BF16 || type == LINATTN_F16 ? 2 : 4;
    const size_t total = static_cast<size_t>(count) * element;
    memory_.push_back(std::make_unique<gpu::Memory>(total));
    char* data = static_cast<char*>(memory_.back()->data);
    bytes += static_cast<double>(total);
    std::vector<char> block(std::min<size_t>(total, 4 << 20));
    std::mt19937 random(static_cast<uint32_t>(memory_.size()));
    for (size_t at = 0; at + element <= block.size(); at += element) {
      const float unit = static_cast<float>(random() >> 8) * 0x1p-24f;
      const float x = amplitude < 0 ? amplitude * unit : amplitude * (2 * unit - 1);
      uint32_t bits;
      std::memcpy(&bits, &x, 4);
      if (type == LINATTN_F16) bits = 0;  // zeros: no host conversion here, and no bench needs it
      if (element == 2) bits >>= 16;
      std::memcpy(&block[at], &bits, element);
    }
    size_t filled = std::min(block.size(), total);
    GPU_CHECK(cudaMemcpy(data, block.data(), filled, cudaMemcpyHostToDevice));
    while (filled < total) {
      const size_t more = std::min(filled, total - filled);
      GPU_CHECK(cudaMemcpy(data + filled, data, more, cudaMemcpyDeviceToDevice));
      filled += more;
    }
    return data;
  }

  std::vector<std::unique_ptr<gpu::Memory>> memory_;
};

constexpr double kCopyRate = 4.3e12;  // bytes a second, read + write: torch's device copy, H200

}  // namespace bench
