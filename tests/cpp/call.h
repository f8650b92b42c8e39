// A call of the C interface with its own memory, for tests: tensors by name of any type and layout,
// read and written as doubles in logical row-major order.
#pragma once

#include <cmath>
#include <cstring>
#include <functional>
#include <initializer_list>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "check.h"
#include "core/float_types.h"
#include "linattn/linattn.h"

namespace call {

// Tensors in the order of linattn_problem and linattn_args.
enum Name {
  kQ,
  kK,
  kV,
  kG,
  kGamma,
  kBeta,
  kALog,
  kDtBias,
  kH0,
  kCuSeqlens,
  kStateIndices,
  kOutputIndices,
  kHasInitial,
  kAccepted,
  kO,
  kHt,
  kStates,
  kDo,
  kDht,
  kDq,
  kDk,
  kDv,
  kDg,
  kDbeta,
  kDALog,
  kDdtBias,
  kDh0,
  kNames
};
static_assert(offsetof(linattn_problem, dh0) ==
              offsetof(linattn_problem, q) + kDh0 * sizeof(linattn_tensor));
static_assert(offsetof(linattn_args, dh0) == offsetof(linattn_args, q) + kDh0 * sizeof(void*));

constexpr unsigned char kPoison = 0xff;  // NaN in every float type, dead as an index

inline int bytes_of(int32_t type) {
  return type == LINATTN_I64                          ? 8
         : type == LINATTN_F32 || type == LINATTN_I32 ? 4
         : type == LINATTN_BOOL                       ? 1
                                                      : 2;
}

struct Tensor {
  int32_t type = LINATTN_NONE;
  std::vector<int64_t> size, stride;
  std::vector<unsigned char> data;

  int64_t count() const {
    if (type == LINATTN_NONE) return 0;
    return std::accumulate(size.begin(), size.end(), int64_t{1}, std::multiplies<>());
  }
  int64_t offset(int64_t flat) const {
    int64_t at = 0;
    for (size_t axis = size.size(); axis-- > 0; flat /= size[axis])
      at += flat % size[axis] * stride[axis];
    return at;
  }
  unsigned char* element(int64_t flat) { return data.data() + offset(flat) * bytes_of(type); }

  double get(int64_t flat) const {
    const unsigned char* at = data.data() + offset(flat) * bytes_of(type);
    const auto as = [&]<class T>(T x) {
      std::memcpy(&x, at, sizeof(x));
      return x;
    };
    switch (type) {
      case LINATTN_F32:
        return as(0.0f);
      case LINATTN_BF16:
        return linattn::to_float(as(linattn::Bf16{}));
      case LINATTN_F16:
        return linattn::to_float(as(linattn::F16{}));
      case LINATTN_I32:
        return as(int32_t{0});
      case LINATTN_I64:
        return static_cast<double>(as(int64_t{0}));
      default:
        return *at;
    }
  }
  void set(int64_t flat, double x) {
    const auto put = [&](auto y) { std::memcpy(element(flat), &y, sizeof(y)); };
    switch (type) {
      case LINATTN_F32:
        return put(static_cast<float>(x));
      case LINATTN_BF16:
        return put(linattn::from_double<linattn::Bf16>(x));
      case LINATTN_F16:
        return put(linattn::from_double<linattn::F16>(x));
      case LINATTN_I32:
        return put(static_cast<int32_t>(x));
      case LINATTN_I64:
        return put(static_cast<int64_t>(x));
      default:
        *element(flat) = x != 0;
    }
  }
  std::vector<double> values() const {
    std::vector<double> all(static_cast<size_t>(count()));
    for (int64_t i = 0; i < count(); ++i) all[static_cast<size_t>(i)] = get(i);
    return all;
  }
};

// Axes from the innermost in memory to the outermost; `gap` elements of poison between neighbours
// of the innermost and after each further axis. Default: contiguous.
inline Tensor make(int32_t type, std::vector<int64_t> size, std::vector<int> inner_first = {},
                   int64_t gap = 0) {
  Tensor t{type, size, std::vector<int64_t>(size.size()), {}};
  if (inner_first.empty())
    for (size_t axis = size.size(); axis-- > 0;) inner_first.push_back(static_cast<int>(axis));
  int64_t step = 1 + gap;
  for (int axis : inner_first) {
    t.stride[static_cast<size_t>(axis)] = step;
    step = step * size[static_cast<size_t>(axis)] + gap;
  }
  t.data.assign(static_cast<size_t>((step + 1) * bytes_of(type)), kPoison);
  return t;
}

inline Tensor make(int32_t type, std::vector<int64_t> size, const std::function<double()>& fill) {
  Tensor t = make(type, std::move(size));
  for (int64_t i = 0; i < t.count(); ++i) t.set(i, fill());
  return t;
}

inline Tensor make(int32_t type, std::initializer_list<double> values) {
  Tensor t = make(type, std::vector<int64_t>{static_cast<int64_t>(values.size())});
  int64_t i = 0;
  for (double x : values) t.set(i++, x);
  return t;
}

// The same values in another type or layout.
inline Tensor convert(const Tensor& from, int32_t type, std::vector<int> inner_first = {},
                      int64_t gap = 0) {
  Tensor t = make(type, from.size, std::move(inner_first), gap);
  for (int64_t i = 0; i < t.count(); ++i) t.set(i, from.get(i));
  return t;
}

struct Call {
  linattn_problem problem{};
  Tensor tensor[kNames];

  Tensor& operator[](Name name) { return tensor[name]; }
  const Tensor& operator[](Name name) const { return tensor[name]; }
};

// A plan of one implementation, ready to run on the call's current bytes.
class Planned {
 public:
  Planned(Call& call, const char* implementation) : call_(call) {
    call.problem.struct_size = sizeof(linattn_problem);
    call.problem.force = linattn_implementation_id(implementation);
    linattn_tensor* described = &call.problem.q;
    for (int name = 0; name < kNames; ++name) {
      const Tensor& t = call.tensor[name];
      described[name] = {};
      described[name].type = t.type;
      described[name].rank = static_cast<int32_t>(t.size.size());
      for (size_t axis = 0; axis < t.size.size(); ++axis) {
        described[name].size[axis] = t.size[axis];
        described[name].stride[axis] = t.stride[axis];
      }
    }
    status_ = linattn_plan(&call.problem, {LINATTN_DEVICE_CPU, 0}, &plan_);
    CHECK_THAT(status_ == LINATTN_OK, "%s", linattn_last_error());
    if (status_ == LINATTN_OK)
      workspace_.assign(static_cast<size_t>(linattn_plan_workspace_bytes(plan_)) + 256, kPoison);
  }
  Planned(const Planned&) = delete;
  ~Planned() { linattn_plan_destroy(plan_); }

  int64_t workspace_bytes() const {
    return status_ == LINATTN_OK ? linattn_plan_workspace_bytes(plan_) : 0;
  }

  bool run() {
    if (status_ != LINATTN_OK) return false;
    linattn_args args{};
    args.struct_size = sizeof(args);
    args.workspace =
        workspace_.data() + (256 - reinterpret_cast<uintptr_t>(workspace_.data()) % 256);
    const void** pointers = &args.q;
    for (int name = 0; name < kNames; ++name)
      pointers[name] =
          call_.tensor[name].type == LINATTN_NONE ? nullptr : call_.tensor[name].data.data();
    const int32_t status = linattn_run(plan_, &args, nullptr);
    CHECK_THAT(status == LINATTN_OK, "%s", linattn_last_error());
    return status == LINATTN_OK;
  }

 private:
  Call& call_;
  linattn_plan_t plan_ = nullptr;
  int32_t status_ = LINATTN_OK;
  std::vector<unsigned char> workspace_;
};

inline bool run(Call& call, const char* implementation) {
  return Planned(call, implementation).run();
}

// ||a - b|| / ||b||; NaN and inf come out as infinity.
inline double error(const std::vector<double>& a, const std::vector<double>& b) {
  double difference = 0, norm = 0;
  if (a.size() != b.size()) return INFINITY;
  for (size_t i = 0; i < a.size(); ++i) {
    difference += (a[i] - b[i]) * (a[i] - b[i]);
    norm += b[i] * b[i];
  }
  if (!std::isfinite(difference) || !std::isfinite(norm)) return INFINITY;
  return difference == 0 ? 0 : std::sqrt(difference / norm);
}

inline bool same_bits(const Tensor& a, const Tensor& b) {
  if (a.type != b.type || a.size != b.size) return false;
  for (int64_t i = 0; i < a.count(); ++i)
    if (std::memcmp(a.data.data() + a.offset(i) * bytes_of(a.type),
                    b.data.data() + b.offset(i) * bytes_of(b.type),
                    static_cast<size_t>(bytes_of(a.type))) != 0)
      return false;
  return true;
}

// Indices [begin, end) of one axis, contiguous.
inline Tensor cut(const Tensor& from, size_t axis, int64_t begin, int64_t end) {
  if (from.type == LINATTN_NONE) return from;
  Tensor t = from;
  t.size[axis] = end - begin;
  t.data.erase(t.data.begin(), t.data.begin() + begin * from.stride[axis] * bytes_of(from.type));
  Tensor packed = make(t.type, t.size);
  for (int64_t i = 0; i < t.count(); ++i)
    std::memcpy(packed.element(i), t.element(i), static_cast<size_t>(bytes_of(t.type)));
  return packed;
}

inline bool all_zero(const Tensor& t) {
  for (double x : t.values())
    if (x != 0) return false;
  return true;
}

inline bool all_finite(const Tensor& t) {
  for (double x : t.values())
    if (!std::isfinite(x)) return false;
  return true;
}

}  // namespace call
