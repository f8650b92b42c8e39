// Random problems through the C interface: raw bytes as structs, and legal problems with a few
// members broken. What is accepted and small is run on buffers of exactly the promised size.
//
// Properties: no crash, no out-of-bounds access, no undefined behaviour (the sanitizers watch); a
// status from the list, with a text when it is not 0; an error writes nothing; a run writes nothing
// but elements of its outputs.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "linattn/linattn.hpp"

namespace {

constexpr std::size_t kMaxBytes = 1 << 21;  // of all buffers of a run
constexpr double kMaxWork = 2e5;            // tokens * heads * K * V: the reference is slow

[[noreturn]] void broken(const std::string& what) {
  std::fprintf(stderr, "property broken: %s\n", what.c_str());
  std::abort();
}

// Decisions from the fuzzer's bytes; zeros once they are used up.
class Source {
 public:
  Source(const uint8_t* data, std::size_t size) : data_(data), size_(size) {}
  uint8_t byte() { return at_ < size_ ? data_[at_++] : 0; }
  int64_t below(int64_t bound) { return bound <= 1 ? 0 : word() % bound; }
  bool one_in(int64_t n) { return below(n) == n - 1; }
  int64_t word() {
    uint64_t value = 0;
    for (int i = 0; i < 4; ++i) value = value << 8 | byte();
    return static_cast<int64_t>(value);
  }
  template <class T>
  T any() {
    T value;
    for (std::size_t i = 0; i < sizeof(T); ++i) reinterpret_cast<uint8_t*>(&value)[i] = byte();
    return value;
  }
  template <class T>
  T of(std::initializer_list<T> values) {
    return values.begin()[below(static_cast<int64_t>(values.size()))];
  }

 private:
  const uint8_t* data_;
  std::size_t size_, at_ = 0;
};

// ---- problems

using Tensors = std::vector<linattn_tensor*>;

Tensors tensors_of(linattn_problem& p) {
  Tensors all;
  linattn::detail::for_each_tensor(
      p, p, p, [&](const char*, linattn_tensor& t, auto&, auto&) { all.push_back(&t); });
  return all;
}

linattn_tensor strided(Source& s, int32_t type, std::vector<int64_t> size) {
  linattn_tensor t{};
  t.type = type;
  t.rank = static_cast<int32_t>(size.size());
  const bool padded = s.one_in(4);
  int64_t stride = 1;
  for (int axis = t.rank - 1; axis >= 0; --axis) {
    t.size[axis] = size[static_cast<std::size_t>(axis)];
    t.stride[axis] = stride;
    stride *= std::max<int64_t>(t.size[axis], 1);
    if (padded && axis < t.rank && s.one_in(2)) stride += s.below(5);
  }
  return t;
}

linattn_problem legal(Source& s) {
  linattn_problem p{};
  p.struct_size = sizeof(p);
  p.family = static_cast<int32_t>(1 + s.below(6));
  const bool delta = p.family <= LINATTN_DELTA;
  switch (p.family) {
    case LINATTN_KDA:
      p.gate = LINATTN_GATE_CHANNEL;
      break;
    case LINATTN_GDN:
      p.gate = s.of<int32_t>({LINATTN_GATE_HEAD, LINATTN_GATE_CHANNEL, 0});
      break;
    case LINATTN_GLA:
      p.gate = s.of<int32_t>({LINATTN_GATE_CHANNEL, 0});
      break;
    case LINATTN_SIMPLE_GLA:
      p.gate = s.of<int32_t>({LINATTN_GATE_HEAD, LINATTN_GATE_HEAD_CONSTANT});
      break;
    case LINATTN_LIGHTNING:
      p.gate = LINATTN_GATE_HEAD_CONSTANT;
      break;
    default:
      break;
  }
  p.pass = s.one_in(3) ? LINATTN_BACKWARD : LINATTN_FORWARD;
  p.form = p.pass == LINATTN_BACKWARD ? LINATTN_CHUNK
                                      : s.of<int32_t>({LINATTN_CHUNK, LINATTN_RECURRENT});
  p.scale = s.of({1.0, 0.0, 0.125, -2.0});
  const int32_t type = s.of<int32_t>({LINATTN_F32, LINATTN_F32, LINATTN_BF16, LINATTN_F16});
  const int64_t h = 1 + s.below(2), hv = h * (1 + s.below(3));
  const int64_t k = s.of<int64_t>({1, 3, 8, 16, 33, 64}), v = s.of<int64_t>({1, 5, 8, 16, 40, 64});
  const bool packed = s.one_in(3);
  const int64_t batch = packed ? 1 : s.below(3) + 1;
  const int64_t tokens = s.of<int64_t>({0, 1, 2, 15, 16, 17, 63, 64, 65, 130});
  const int64_t n = packed ? 1 + s.below(4) : batch;
  const auto gate_type = [&] { return s.of<int32_t>({LINATTN_F32, LINATTN_BF16, LINATTN_F16}); };

  p.q = strided(s, type, {batch, tokens, h, k});
  p.k = strided(s, type, {batch, tokens, h, k});
  p.v = strided(s, type, {batch, tokens, hv, v});
  if (packed) p.cu_seqlens = strided(s, s.of<int32_t>({LINATTN_I32, LINATTN_I64}), {n + 1});
  if (p.gate == LINATTN_GATE_CHANNEL) p.g = strided(s, gate_type(), {batch, tokens, hv, k});
  if (p.gate == LINATTN_GATE_HEAD) p.g = strided(s, gate_type(), {batch, tokens, hv});
  if (p.gate == LINATTN_GATE_HEAD_CONSTANT) p.g_gamma = strided(s, LINATTN_F32, {hv});
  if (delta) p.beta = strided(s, gate_type(), {batch, tokens, hv});
  if (p.family <= LINATTN_GDN && p.g.type != LINATTN_NONE && s.one_in(3)) {
    const bool channel = p.gate == LINATTN_GATE_CHANNEL;
    p.gate_form = p.family == LINATTN_KDA && s.one_in(2) ? LINATTN_GATE_RAW_BOUNDED
                                                         : LINATTN_GATE_RAW_SOFTPLUS;
    if (p.gate_form == LINATTN_GATE_RAW_BOUNDED) p.lower_bound = -5;
    if (p.gate_form == LINATTN_GATE_RAW_SOFTPLUS || s.one_in(2))
      p.A_log = strided(s, LINATTN_F32, {hv});
    if (s.one_in(2))
      p.dt_bias = channel ? strided(s, LINATTN_F32, {hv, k}) : strided(s, LINATTN_F32, {hv});
  }
  if (p.family <= LINATTN_GDN) p.beta_form = static_cast<int32_t>(s.below(3));
  const auto flag = [&](int64_t odds, uint32_t bit) { p.flags |= s.one_in(odds) ? bit : 0; };
  flag(2, delta ? LINATTN_FLAG_QK_NORM : 0);
  flag(2, LINATTN_FLAG_STATE_V_FIRST);
  flag(4, LINATTN_FLAG_NO_AUTO_CP);
  flag(4, LINATTN_FLAG_BATCH_INVARIANT);
  flag(4, p.gate == LINATTN_GATE_CHANNEL ? LINATTN_FLAG_SAFE_GATE : 0);
  const bool v_first = p.flags & LINATTN_FLAG_STATE_V_FIRST;
  const auto state = [&](int64_t count) {
    return v_first ? strided(s, gate_type(), {count, hv, v, k})
                   : strided(s, gate_type(), {count, hv, k, v});
  };

  if (p.pass == LINATTN_BACKWARD) {
    p.do_ = strided(s, type, {batch, tokens, hv, v});
    if (s.one_in(2)) p.dht = state(n);
    if (s.one_in(2)) p.initial_state = state(n), p.dh0 = state(n);
    const auto like = [&](linattn_tensor& d, const linattn_tensor& t) {
      if (t.type == LINATTN_NONE || s.one_in(5)) return;
      d = t;
      if (s.one_in(2)) d.type = LINATTN_F32;
    };
    like(p.dq, p.q), like(p.dk, p.k), like(p.dv, p.v), like(p.dg, p.g), like(p.dbeta, p.beta);
    like(p.dA_log, p.A_log), like(p.ddt_bias, p.dt_bias);
    return p;
  }
  p.o = strided(s, type, {batch, tokens, hv, v});
  if (s.one_in(3)) {
    const int64_t slots = 1 + s.below(5);
    p.initial_state = state(slots);
    const bool columns = p.form == LINATTN_RECURRENT && s.one_in(2);
    const int32_t index = s.of<int32_t>({LINATTN_I32, LINATTN_I64});
    const auto indices = [&] {
      return columns ? strided(s, index, {n, std::max<int64_t>(tokens, 1) + s.below(2)})
                     : strided(s, index, {n});
    };
    p.state_indices = indices();
    if (s.one_in(3)) p.output_state_indices = p.state_indices;
    if (columns && s.one_in(2)) p.num_accepted_tokens = strided(s, LINATTN_I32, {n});
    if (s.one_in(3)) p.flags |= LINATTN_FLAG_NULL_STATE_INDEX, p.null_state_index = s.below(3);
  } else {
    if (s.one_in(2)) p.initial_state = state(n);
    if (s.one_in(2)) p.final_state = state(n);
  }
  if (p.initial_state.type != LINATTN_NONE && s.one_in(4))
    p.has_initial_state = strided(s, LINATTN_BOOL, {n});
  if (p.form == LINATTN_CHUNK && s.one_in(3)) {
    p.state_every = s.of<int64_t>({0, 64, 128});
    const int64_t every = p.state_every == 0 ? 64 : p.state_every;
    const int64_t rows =
        packed ? linattn_intermediate_rows_bound(tokens, n, every) : (tokens + every - 1) / every;
    p.intermediate_states = v_first ? strided(s, type, {batch, rows, hv, v, k})
                                    : strided(s, type, {batch, rows, hv, k, v});
  }
  return p;
}

// Breaks one place: a member of a tensor, a whole tensor, or four bytes anywhere.
void mutate(Source& s, linattn_problem& p) {
  const Tensors all = tensors_of(p);
  linattn_tensor& t = *all[static_cast<std::size_t>(s.below(static_cast<int64_t>(all.size())))];
  const int64_t axis = s.below(LINATTN_MAX_RANK);
  const auto extreme = [&] {
    return s.of<int64_t>(
        {0, 1, -1, 2, 7, 256, 257, 1 << 20, INT64_MAX, INT64_MIN, INT64_MAX / 2, int64_t{1} << 32});
  };
  switch (s.below(9)) {
    case 0:
      t.type = static_cast<int32_t>(s.below(14)) - 2;
      break;
    case 1:
      t.rank = static_cast<int32_t>(s.below(9)) - 2;
      break;
    case 2:
      t.size[axis] = extreme();
      break;
    case 3:
      t.stride[axis] = extreme();
      break;
    case 4:
      t.device_type = static_cast<int32_t>(s.below(5)) - 1;
      break;
    case 5:
      t = *all[static_cast<std::size_t>(s.below(static_cast<int64_t>(all.size())))];
      break;
    case 6:
      t = {};
      break;
    case 7:
      p.struct_size = static_cast<uint32_t>(s.word());
      break;
    default: {
      const std::size_t at = static_cast<std::size_t>(s.below(sizeof(p) - 4));
      const uint32_t value = s.any<uint32_t>();
      std::memcpy(reinterpret_cast<char*>(&p) + at, &value, 4);
    }
  }
  // The caller's promise is that struct_size bytes can be read.
  p.struct_size = std::min<uint32_t>(p.struct_size, sizeof(p));
}

// ---- runs

struct Allocation {
  linattn_tensor tensor{};
  bool written = false;
  std::unique_ptr<char[]> bytes;  // its own block, so that one element too far is seen
  std::vector<char> before;
};

void fill(Source& s, Allocation& a, std::size_t bytes) {
  a.bytes = std::make_unique<char[]>(bytes);
  const bool wild = s.one_in(8);  // any bit pattern: NaN, infinity
  uint64_t state = static_cast<uint64_t>(s.word()) * 2 + 1;
  const auto next = [&] {
    return (state = state * 6364136223846793005u + 1442695040888963407u) >> 33;
  };
  const std::size_t size = linattn::element_bytes(a.tensor.type);
  for (std::size_t at = 0; at < bytes; at += size) {
    const float value = -2.0f * static_cast<float>(next() % 1000) / 1000.0f;
    uint32_t bits;
    std::memcpy(&bits, &value, 4);
    if (wild) bits = static_cast<uint32_t>(next());
    if (a.tensor.type == LINATTN_BF16) bits >>= 16;
    if (a.tensor.type == LINATTN_F16)
      bits = wild ? bits : 0xb000 | static_cast<uint32_t>(next() % 1024);
    const int64_t integer = static_cast<int64_t>(next() % 7) - 1;
    if (a.tensor.type == LINATTN_I32 || a.tensor.type == LINATTN_I64 ||
        a.tensor.type == LINATTN_BOOL)
      std::memcpy(&a.bytes[at], &integer, size);
    else
      std::memcpy(&a.bytes[at], &bits, size);
  }
}

// Offsets that are mostly legal: sorted, from 0, at most T.
void fill_offsets(Source& s, Allocation& a, int64_t tokens) {
  int64_t value = 0;
  for (int64_t n = 0; n < a.tensor.size[0]; ++n) {
    if (n > 0) value += s.below(tokens - value + 1);
    if (s.one_in(40)) value = s.below(tokens + 3) - 1;
    const int64_t at =
        n * a.tensor.stride[0] * static_cast<int64_t>(linattn::element_bytes(a.tensor.type));
    std::memcpy(&a.bytes[static_cast<std::size_t>(at)], &value,
                linattn::element_bytes(a.tensor.type));
  }
}

// Marks the bytes of the elements of a tensor.
std::vector<bool> owned_bytes(const linattn_tensor& t, std::size_t bytes) {
  std::vector<bool> owned(bytes, false);
  const std::size_t size = linattn::element_bytes(t.type);
  int64_t count = 1;
  for (int axis = 0; axis < t.rank; ++axis) count *= t.size[axis];
  for (int64_t index = 0; index < count; ++index) {
    int64_t rest = index, offset = 0;
    for (int axis = t.rank - 1; axis >= 0; --axis) {
      offset += rest % t.size[axis] * t.stride[axis];
      rest /= t.size[axis];
    }
    for (std::size_t b = 0; b < size; ++b)
      owned[static_cast<std::size_t>(offset) * size + b] = true;
  }
  return owned;
}

bool small_enough(const linattn_problem& p, linattn_plan_t plan, std::size_t workspace) {
  if (workspace > kMaxBytes) return false;
  linattn_problem copy = p;
  double total = 0;
  for (const linattn_tensor* t : tensors_of(copy)) {
    double bytes = 8;
    for (int axis = 0; axis < t->rank && t->type != LINATTN_NONE; ++axis)
      bytes += 8.0 * static_cast<double>(std::max<int64_t>(t->size[axis] - 1, 0)) *
               static_cast<double>(t->stride[axis]);
    total += bytes;
  }
  const double work = static_cast<double>(p.q.size[0] * p.q.size[1]) *
                      static_cast<double>(p.v.size[2]) *
                      static_cast<double>(p.q.size[3] * p.v.size[3]);
  const bool slow = std::strcmp(linattn_plan_implementation(plan), "reference") == 0;
  return total < kMaxBytes && work < (slow ? kMaxWork : 20 * kMaxWork);
}

void run(Source& s, const linattn_problem& problem, linattn_plan_t plan) {
  const int64_t workspace_bytes = linattn_plan_workspace_bytes(plan);
  if (workspace_bytes < 0) broken("negative workspace");
  if (!small_enough(problem, plan, static_cast<std::size_t>(workspace_bytes))) return;

  linattn_problem p = problem;
  linattn_args args{};
  args.struct_size = sizeof(args);
  std::vector<Allocation> allocations;
  allocations.reserve(32);
  const bool pool = p.state_indices.type != LINATTN_NONE;
  linattn::detail::for_each_tensor(
      p, p, args, [&](const char* name, linattn_tensor& t, auto&, auto& pointer) {
        if (t.type == LINATTN_NONE) return;
        Allocation& a = allocations.emplace_back();
        a.tensor = t;
        using Pointer = std::remove_reference_t<decltype(pointer)>;
        a.written = std::is_same_v<Pointer, void*> && (&t != &p.initial_state || pool);
        const std::size_t bytes = linattn::span_bytes(t);
        fill(s, a, bytes);
        if (&t == &p.cu_seqlens) fill_offsets(s, a, p.q.size[1]);
        a.before.assign(a.bytes.get(), a.bytes.get() + bytes);
        pointer = s.one_in(200) ? nullptr : a.bytes.get();
        (void)name;
      });
  const auto workspace = std::make_unique<char[]>(static_cast<std::size_t>(workspace_bytes));
  args.workspace = workspace.get();

  const int32_t status = linattn_run(plan, &args, nullptr);
  if (status != LINATTN_OK && status != LINATTN_INVALID_VALUE)
    broken("run returned " + std::to_string(status));
  if (status != LINATTN_OK && linattn_last_error()[0] == '\0') broken("a failed run has no text");
  for (const Allocation& a : allocations) {
    const std::size_t bytes = a.before.size();
    std::vector<bool> may_change(bytes, false);
    if (status == LINATTN_OK && a.written) may_change = owned_bytes(a.tensor, bytes);
    for (std::size_t at = 0; at < bytes; ++at)
      if (a.bytes[at] != a.before[at] && !may_change[at])
        broken("byte " + std::to_string(at) + " of tensor " +
               std::to_string(&a - allocations.data()) + " changed, status " +
               std::to_string(status));
  }
}

void plan_and_run(Source& s, const linattn_problem& p) {
  const linattn_device device{s.one_in(10) ? static_cast<int32_t>(s.below(4)) : LINATTN_DEVICE_CPU,
                              0};
  linattn_plan_t plan = nullptr;
  const int32_t status = linattn_plan(&p, device, &plan);
  if (status < LINATTN_OK || status > LINATTN_NOT_IMPLEMENTED) broken("a status of no name");
  if ((status == LINATTN_OK) != (plan != nullptr)) broken("plan and status disagree");
  if (status != LINATTN_OK && linattn_last_error()[0] == '\0') broken("a failed plan has no text");

  char text[512];
  int64_t length = -1;
  const int32_t explained = linattn_explain(&p, device, nullptr, 0, &length);
  if (status == LINATTN_OK || status == LINATTN_UNSUPPORTED) {
    if (explained != LINATTN_OK || length <= 0) broken("explain fails where plan does not");
    linattn_explain(&p, device, text, s.below(sizeof(text)), &length);
  } else if (explained != status) {
    broken("explain and plan disagree");
  }
  if (plan != nullptr && device.type == LINATTN_DEVICE_CPU) run(s, p, plan);
  linattn_plan_destroy(plan);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, std::size_t size) {
  Source s(data, size);
  linattn_problem problem{};
  if (s.one_in(16)) {
    problem = s.any<linattn_problem>();
    problem.struct_size =
        s.one_in(2) ? sizeof(problem) : std::min<uint32_t>(problem.struct_size, sizeof(problem));
  } else {
    problem = legal(s);
    for (int64_t faults = s.below(8) - 4; faults > 0; --faults) mutate(s, problem);
  }
  plan_and_run(s, problem);
  return 0;
}

#ifndef LINATTN_LIBFUZZER
#include <chrono>
#include <csignal>
#include <random>

namespace {

uint64_t current_seed = 0;

void tell_seed() {
  std::fprintf(stderr, "fuzz_c_api: repeat with --seed %llu --runs 1\n",
               static_cast<unsigned long long>(current_seed));
}

}  // namespace

// fuzz_c_api [--seconds S] [--seed N] [--runs N]: input i is drawn from seed N + i alone.
int main(int argc, char** argv) {
  double seconds = 10;
  uint64_t seed = 1, runs = UINT64_MAX;
  for (int i = 1; i + 1 < argc; i += 2) {
    const std::string option = argv[i];
    if (option == "--seconds") seconds = std::atof(argv[i + 1]);
    if (option == "--seed") seed = std::strtoull(argv[i + 1], nullptr, 10);
    if (option == "--runs") runs = std::strtoull(argv[i + 1], nullptr, 10), seconds = 1e9;
  }
  // Sanitizers end this way with abort_on_error=1 (tools/run_fuzz.sh sets it).
  std::signal(SIGABRT, [](int) { tell_seed(); });
  const auto start = std::chrono::steady_clock::now();
  uint64_t done = 0;
  std::vector<uint8_t> input;
  for (; done < runs; ++done) {
    if (std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count() > seconds)
      break;
    current_seed = seed + done;
    std::mt19937_64 random(current_seed);
    input.resize(2048);
    for (uint8_t& byte : input) byte = static_cast<uint8_t>(random());
    LLVMFuzzerTestOneInput(input.data(), input.size());
  }
  std::printf("fuzz_c_api: %llu inputs from seed %llu on, no fault\n",
              static_cast<unsigned long long>(done), static_cast<unsigned long long>(seed));
  return done > 0 ? 0 : 1;
}
#endif
