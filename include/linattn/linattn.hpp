// linattn in C++20: the C interface with designated initialisers, exceptions, sized buffers and a
// plan that frees itself. Header only; link liblinattn.
//
//   linattn::Problem problem{.family = linattn::Family::kda,
//                            .q = linattn::tensor<float>({B, T, H, K}), ...};
//   linattn::Plan plan(problem);
//   linattn::Workspace workspace(plan);
//   plan.run({.workspace = workspace, .q = q, .k = k, ..., .o = o});
#ifndef LINATTN_LINATTN_HPP_
#define LINATTN_LINATTN_HPP_

#include <cmath>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <new>
#include <optional>
#include <ranges>
#include <span>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <utility>

#include "linattn/linattn.h"

namespace linattn {
inline namespace cpp {

// ---- errors: one class for each status, all carrying the library's text

class Error : public std::runtime_error {
 public:
  Error(int32_t status, const std::string& text) : std::runtime_error(text), status_(status) {}
  int32_t status() const noexcept { return status_; }

 private:
  int32_t status_;
};
class InvalidValue : public Error {
  using Error::Error;
};
class InvalidType : public Error {
  using Error::Error;
};
class Unsupported : public Error {
  using Error::Error;
};
class DeviceFailure : public Error {
  using Error::Error;
};
class OutOfMemory : public Error {
  using Error::Error;
};
class NotImplemented : public Error {
  using Error::Error;
};

[[noreturn]] inline void raise(int32_t status, const std::string& text) {
  switch (status) {
    case LINATTN_INVALID_VALUE:
      throw InvalidValue(status, text);
    case LINATTN_INVALID_TYPE:
      throw InvalidType(status, text);
    case LINATTN_UNSUPPORTED:
      throw Unsupported(status, text);
    case LINATTN_DEVICE_FAILURE:
      throw DeviceFailure(status, text);
    case LINATTN_OUT_OF_MEMORY:
      throw OutOfMemory(status, text);
    case LINATTN_NOT_IMPLEMENTED:
      throw NotImplemented(status, text);
    default:
      throw Error(status, text);
  }
}
inline void check(int32_t status) {
  if (status != LINATTN_OK) raise(status, linattn_last_error());
}

// ---- element types

// 16-bit floats as bit patterns, for programs that have no type of their own.
struct bf16 {
  uint16_t bits;
};
struct f16 {
  uint16_t bits;
};

// Specialise for a program's own 16-bit floats: `template <> inline constexpr int32_t
// linattn::element_type<__nv_bfloat16> = LINATTN_BF16;`
template <class T>
inline constexpr int32_t element_type = LINATTN_OTHER_TYPE;
template <>
inline constexpr int32_t element_type<float> = LINATTN_F32;
template <>
inline constexpr int32_t element_type<bf16> = LINATTN_BF16;
template <>
inline constexpr int32_t element_type<f16> = LINATTN_F16;
template <>
inline constexpr int32_t element_type<int32_t> = LINATTN_I32;
template <>
inline constexpr int32_t element_type<int64_t> = LINATTN_I64;
template <>
inline constexpr int32_t element_type<bool> = LINATTN_BOOL;

constexpr std::size_t element_bytes(int32_t type) {
  switch (type) {
    case LINATTN_F32:
    case LINATTN_I32:
      return 4;
    case LINATTN_BF16:
    case LINATTN_F16:
      return 2;
    case LINATTN_I64:
      return 8;
    case LINATTN_BOOL:
      return 1;
    default:
      return 0;
  }
}

// ---- tensors

using Device = linattn_device;
inline constexpr Device cpu{LINATTN_DEVICE_CPU, 0};
constexpr Device cuda(int32_t index) { return {LINATTN_DEVICE_CUDA, index}; }

// Sizes and strides in elements, outermost axis first.
constexpr linattn_tensor strided(int32_t type, std::initializer_list<int64_t> size,
                                 std::initializer_list<int64_t> stride, Device device = cpu) {
  if (size.size() > LINATTN_MAX_RANK || size.size() != stride.size())
    throw InvalidValue(LINATTN_INVALID_VALUE, "a tensor has up to 5 sizes and as many strides");
  linattn_tensor t{};
  t.type = type;
  t.rank = static_cast<int32_t>(size.size());
  t.device_type = device.type;
  t.device_index = device.index;
  for (std::size_t axis = 0; axis < size.size(); ++axis) {
    t.size[axis] = size.begin()[axis];
    t.stride[axis] = stride.begin()[axis];
  }
  return t;
}

// Contiguous, last axis fastest.
constexpr linattn_tensor contiguous(int32_t type, std::initializer_list<int64_t> size,
                                    Device device = cpu) {
  linattn_tensor t = strided(type, size, size, device);
  int64_t stride = 1;
  for (int32_t axis = t.rank - 1; axis >= 0; --axis) {
    t.stride[axis] = stride;
    stride *= t.size[axis];
  }
  return t;
}
template <class T>
constexpr linattn_tensor tensor(std::initializer_list<int64_t> size, Device device = cpu) {
  static_assert(element_type<T> != LINATTN_OTHER_TYPE, "specialise linattn::element_type<T>");
  return contiguous(element_type<T>, size, device);
}

// Bytes from the first element to the end of the last. Strides are taken as non-negative.
constexpr std::size_t span_bytes(const linattn_tensor& t) {
  int64_t last = 0;
  for (int32_t axis = 0; axis < t.rank; ++axis) {
    if (t.size[axis] <= 0) return 0;
    last += (t.size[axis] - 1) * t.stride[axis];
  }
  return (static_cast<std::size_t>(last) + 1) * element_bytes(t.type);
}

// Memory that a tensor lies in: from a span, a vector, an array (whose size is then checked against
// the plan), or a bare pointer (device memory, mostly; not checked).
template <class Void>
class BasicBuffer {
 public:
  static constexpr std::size_t kUnknown = ~std::size_t{0};

  constexpr BasicBuffer() = default;
  constexpr BasicBuffer(std::nullptr_t) {}
  template <class T>
    requires std::convertible_to<T*, Void*>
  constexpr BasicBuffer(T* data) : data_(data) {}
  template <std::ranges::contiguous_range R>
    requires std::ranges::sized_range<R> &&
                 std::convertible_to<decltype(std::ranges::data(std::declval<R&>())), Void*>
  constexpr BasicBuffer(R&& range)
      : data_(std::ranges::data(range)),
        bytes_(std::ranges::size(range) * sizeof(std::ranges::range_value_t<R>)) {}

  constexpr Void* data() const { return data_; }
  constexpr std::size_t bytes() const { return bytes_; }

 private:
  Void* data_ = nullptr;
  std::size_t bytes_ = kUnknown;
};
using ConstBuffer = BasicBuffer<const void>;
using Buffer = BasicBuffer<void>;

// ---- what is asked

enum class Family : int32_t {
  kda = LINATTN_KDA,
  gdn = LINATTN_GDN,
  delta = LINATTN_DELTA,
  gla = LINATTN_GLA,
  simple_gla = LINATTN_SIMPLE_GLA,
  lightning = LINATTN_LIGHTNING,
};
enum class Form : int32_t { chunk = LINATTN_CHUNK, recurrent = LINATTN_RECURRENT };
enum class Pass : int32_t { forward = LINATTN_FORWARD, backward = LINATTN_BACKWARD };
enum class Gate : int32_t {
  none = LINATTN_GATE_NONE,
  head_constant = LINATTN_GATE_HEAD_CONSTANT,
  head = LINATTN_GATE_HEAD,
  channel = LINATTN_GATE_CHANNEL,
};
enum class GateForm : int32_t {
  given = LINATTN_GATE_GIVEN,
  softplus = LINATTN_GATE_RAW_SOFTPLUS,
  bounded = LINATTN_GATE_RAW_BOUNDED,
};
enum class BetaForm : int32_t {
  value = LINATTN_BETA_VALUE,
  sigmoid = LINATTN_BETA_SIGMOID,
  sigmoid2 = LINATTN_BETA_SIGMOID2,
};

// linattn_problem with defaults; name the members in this order. Shapes stand in linattn.h.
struct Problem {
  Family family;
  Form form = Form::chunk;
  Pass pass = Pass::forward;
  Gate gate = Gate::none;
  GateForm gate_form = GateForm::given;
  BetaForm beta_form = BetaForm::value;
  bool qk_norm = false;
  bool state_v_first = false;
  bool safe_gate = false;
  bool auto_cp = true;
  bool batch_invariant = false;
  std::optional<int64_t> null_state_index{};
  int64_t state_every = 0;
  const char* force = nullptr;    // name of the implementation that must run
  std::optional<double> scale{};  // default K**-0.5
  double lower_bound = 0;

  linattn_tensor q{}, k{}, v{}, g{}, g_gamma{}, beta{}, A_log{}, dt_bias{}, initial_state{};
  linattn_tensor cu_seqlens{}, state_indices{}, output_state_indices{}, has_initial_state{};
  linattn_tensor num_accepted_tokens{};
  linattn_tensor o{}, final_state{}, intermediate_states{};
  linattn_tensor do_{}, dht{};
  linattn_tensor dq{}, dk{}, dv{}, dg{}, dbeta{}, dA_log{}, ddt_bias{}, dh0{};
};

// linattn_args: where the bytes of the tensors above are.
struct Args {
  Buffer workspace{};
  ConstBuffer q{}, k{}, v{}, g{}, g_gamma{}, beta{}, A_log{}, dt_bias{};
  Buffer initial_state{};  // written only when it is a pool
  ConstBuffer cu_seqlens{}, state_indices{}, output_state_indices{}, has_initial_state{};
  ConstBuffer num_accepted_tokens{};
  Buffer o{}, final_state{}, intermediate_states{};
  ConstBuffer do_{}, dht{};
  Buffer dq{}, dk{}, dv{}, dg{}, dbeta{}, dA_log{}, ddt_bias{}, dh0{};
};

namespace detail {

// Calls f(name, tensor of the problem, buffer of the args, pointer of the C args) for every tensor.
template <class P, class A, class C, class F>
void for_each_tensor(P& p, A& a, C& c, F&& f) {
#define LINATTN_TENSOR_(name) f(#name, p.name, a.name, c.name)
  LINATTN_TENSOR_(q), LINATTN_TENSOR_(k), LINATTN_TENSOR_(v), LINATTN_TENSOR_(g),
      LINATTN_TENSOR_(g_gamma), LINATTN_TENSOR_(beta), LINATTN_TENSOR_(A_log);
  LINATTN_TENSOR_(dt_bias), LINATTN_TENSOR_(initial_state), LINATTN_TENSOR_(cu_seqlens);
  LINATTN_TENSOR_(state_indices), LINATTN_TENSOR_(output_state_indices),
      LINATTN_TENSOR_(has_initial_state);
  LINATTN_TENSOR_(num_accepted_tokens), LINATTN_TENSOR_(o), LINATTN_TENSOR_(final_state),
      LINATTN_TENSOR_(intermediate_states);
  LINATTN_TENSOR_(do_), LINATTN_TENSOR_(dht), LINATTN_TENSOR_(dq), LINATTN_TENSOR_(dk),
      LINATTN_TENSOR_(dv), LINATTN_TENSOR_(dg);
  LINATTN_TENSOR_(dbeta), LINATTN_TENSOR_(dA_log), LINATTN_TENSOR_(ddt_bias), LINATTN_TENSOR_(dh0);
#undef LINATTN_TENSOR_
}

inline linattn_problem to_c(const Problem& p) {
  linattn_problem c{};
  c.struct_size = sizeof(c);
  c.family = static_cast<int32_t>(p.family);
  c.form = static_cast<int32_t>(p.form);
  c.pass = static_cast<int32_t>(p.pass);
  c.gate = static_cast<int32_t>(p.gate);
  c.gate_form = static_cast<int32_t>(p.gate_form);
  c.beta_form = static_cast<int32_t>(p.beta_form);
  const auto flag = [&c](bool on, uint32_t bit) { c.flags |= on ? bit : 0; };
  flag(p.qk_norm, LINATTN_FLAG_QK_NORM);
  flag(p.state_v_first, LINATTN_FLAG_STATE_V_FIRST);
  flag(p.safe_gate, LINATTN_FLAG_SAFE_GATE);
  flag(!p.auto_cp, LINATTN_FLAG_NO_AUTO_CP);
  flag(p.batch_invariant, LINATTN_FLAG_BATCH_INVARIANT);
  flag(p.null_state_index.has_value(), LINATTN_FLAG_NULL_STATE_INDEX);
  c.null_state_index = p.null_state_index.value_or(0);
  c.state_every = p.state_every;
  if (p.force != nullptr) {
    c.force = linattn_implementation_id(p.force);
    if (c.force < 0)
      raise(LINATTN_INVALID_VALUE, std::string("force: no implementation is called ") + p.force);
  }
  const bool ranked = p.q.rank > 0 && p.q.rank <= LINATTN_MAX_RANK;
  const int64_t dim_k = ranked ? p.q.size[p.q.rank - 1] : 0;
  c.scale = p.scale ? *p.scale : dim_k > 0 ? 1.0 / std::sqrt(static_cast<double>(dim_k)) : 1.0;
  c.lower_bound = p.lower_bound;
  for_each_tensor(p, c, c, [](const char*, const linattn_tensor& from, linattn_tensor& to, auto&) {
    to = from;
  });
  return c;
}

// Runs a function that writes text into a buffer, first for the size, then for the text.
template <class F>
std::string text_of(F&& write) {
  int64_t length = 0;
  check(write(nullptr, 0, &length));
  std::string text(static_cast<std::size_t>(length) + 1, '\0');
  check(write(text.data(), static_cast<int64_t>(text.size()), &length));
  text.resize(static_cast<std::size_t>(length));
  return text;
}

}  // namespace detail

// ---- how it will be done

// Immutable once made; may be run from many threads at once, each with its own workspace.
class Plan {
 public:
  explicit Plan(const Problem& problem, Device device = cpu) : problem_(problem) {
    const linattn_problem c = detail::to_c(problem);
    check(linattn_plan(&c, device, &plan_));
  }
  Plan(Plan&& other) noexcept
      : problem_(other.problem_), plan_(std::exchange(other.plan_, nullptr)) {}
  Plan& operator=(Plan&& other) noexcept {
    std::swap(problem_, other.problem_);
    std::swap(plan_, other.plan_);
    return *this;
  }
  ~Plan() { linattn_plan_destroy(plan_); }

  std::size_t workspace_bytes() const {
    return static_cast<std::size_t>(linattn_plan_workspace_bytes(plan_));
  }
  std::string implementation() const { return linattn_plan_implementation(plan_); }
  linattn_plan_t get() const noexcept { return plan_; }

  // Throws before anything is written. `stream` is a cudaStream_t, ignored on the CPU. The
  // workspace must start at a multiple of 256 bytes (linattn::Workspace does).
  void run(const Args& args, void* stream = nullptr) const {
    linattn_args c{};
    c.struct_size = sizeof(c);
    require("workspace", args.workspace, workspace_bytes());
    c.workspace = args.workspace.data();
    detail::for_each_tensor(
        problem_, args, c,
        [](const char* name, const linattn_tensor& t, const auto& buffer, auto& pointer) {
          if (t.type == LINATTN_NONE) return;
          require(name, buffer, span_bytes(t));
          pointer = buffer.data();
        });
    check(linattn_run(plan_, &c, stream));
  }

 private:
  template <class Void>
  static void require(const char* name, const BasicBuffer<Void>& buffer, std::size_t bytes) {
    if (buffer.data() == nullptr ? bytes > 0 : buffer.bytes() < bytes)
      raise(LINATTN_INVALID_VALUE,
            std::string(name) + " has " +
                std::to_string(buffer.data() == nullptr ? 0 : buffer.bytes()) +
                " bytes, the plan needs " + std::to_string(bytes));
  }

  Problem problem_;
  linattn_plan_t plan_ = nullptr;
};

// Host memory for a plan, aligned as plans want it.
class Workspace {
 public:
  explicit Workspace(const Plan& plan) : bytes_(plan.workspace_bytes()) {
    data_ = static_cast<std::byte*>(::operator new(bytes_, std::align_val_t{256}));
  }
  Workspace(Workspace&& other) noexcept
      : bytes_(std::exchange(other.bytes_, 0)), data_(std::exchange(other.data_, nullptr)) {}
  Workspace& operator=(Workspace&& other) noexcept {
    std::swap(bytes_, other.bytes_);
    std::swap(data_, other.data_);
    return *this;
  }
  ~Workspace() { ::operator delete(data_, std::align_val_t{256}); }

  std::byte* data() const { return data_; }
  std::size_t size() const { return bytes_; }
  std::byte* begin() const { return data_; }
  std::byte* end() const { return data_ + bytes_; }

 private:
  std::size_t bytes_;
  std::byte* data_;
};

// ---- questions

inline std::string version() { return linattn_version(); }

// JSON: the walk of the implementations for one problem; nothing runs.
inline std::string explain(const Problem& problem, Device device = cpu) {
  const linattn_problem c = detail::to_c(problem);
  return detail::text_of([&](char* buffer, int64_t capacity, int64_t* length) {
    return linattn_explain(&c, device, buffer, capacity, length);
  });
}
// JSON: the ordered lists of every form and pass.
inline std::string implementations() { return detail::text_of(linattn_implementations); }

}  // namespace cpp
}  // namespace linattn

#endif
