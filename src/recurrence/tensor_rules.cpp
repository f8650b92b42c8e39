#include "recurrence/tensor_rules.h"

#include <algorithm>

namespace linattn {

std::string type_name(int32_t type) {
  static const char* const names[] = {"none", "float32", "bfloat16", "float16", "int32", "int64",
                                      "bool", "float64", "int16",    "int8",    "uint8"};
  const bool known = type >= 0 && type < static_cast<int32_t>(std::size(names));
  return known ? names[type] : "an unknown type";
}

std::string device_name(int32_t type, int32_t index) {
  switch (type) {
    case LINATTN_DEVICE_CPU:
      return "cpu";
    case LINATTN_DEVICE_CUDA:
      return format_text("cuda:%d", index);
    case LINATTN_DEVICE_META:
      return "meta";
    default:
      return "an unknown device";
  }
}

std::string shape_text(const int64_t* sizes, int rank) {
  std::string text = "[";
  // A rank from an unchecked struct may be anything.
  for (int axis = 0; axis < std::clamp(rank, 0, LINATTN_MAX_RANK); ++axis)
    text += format_text(axis == 0 ? "%lld" : ",%lld", static_cast<long long>(sizes[axis]));
  return text + "]";
}

Status require_present(const Named& t, const char* why) {
  LINATTN_REQUIRE(t.present(), LINATTN_INVALID_VALUE, "%s is None, but is required %s", t.name,
                  why);
  return LINATTN_OK;
}

Status require_absent(const Named& t, const char* why) {
  LINATTN_REQUIRE(!t.present(), LINATTN_INVALID_VALUE,
                  "%s of shape %s is given, but must be None %s", t.name,
                  shape_text(t.tensor->size, t.tensor->rank).c_str(), why);
  return LINATTN_OK;
}

namespace {

bool overlaps(const linattn_tensor& t) {
  // Axes in order of stride: each must step over all that lie inside it.
  int order[LINATTN_MAX_RANK], count = 0;
  for (int axis = 0; axis < t.rank; ++axis) {
    if (t.size[axis] == 0) return false;
    if (t.size[axis] == 1) continue;
    int at = count++;
    for (; at > 0 && t.stride[order[at - 1]] > t.stride[axis]; --at) order[at] = order[at - 1];
    order[at] = axis;
  }
  __int128 extent = 0;
  for (int i = 0; i < count; ++i) {
    if (t.stride[order[i]] <= extent) return true;
    extent += static_cast<__int128>(t.size[order[i]] - 1) * t.stride[order[i]];
  }
  return false;
}

}  // namespace

Status require_sane(const Named& n, linattn_device device, Access access) {
  const linattn_tensor& t = *n.tensor;
  LINATTN_REQUIRE(t.rank >= 1 && t.rank <= LINATTN_MAX_RANK, LINATTN_INVALID_VALUE,
                  "%s has %d axes; allowed: 1 to %d", n.name, t.rank, LINATTN_MAX_RANK);
  LINATTN_REQUIRE(t.device_type == device.type &&
                      (device.type != LINATTN_DEVICE_CUDA || t.device_index == device.index),
                  LINATTN_INVALID_TYPE, "%s is on %s; every tensor must be on %s, the device of q",
                  n.name, device_name(t.device_type, t.device_index).c_str(),
                  device_name(device.type, device.index).c_str());
  __int128 last = 0;
  for (int axis = 0; axis < t.rank; ++axis) {
    LINATTN_REQUIRE(t.size[axis] >= 0, LINATTN_INVALID_VALUE,
                    "%s has size %lld on axis %d; a size must be at least 0", n.name,
                    static_cast<long long>(t.size[axis]), axis);
    LINATTN_REQUIRE(t.stride[axis] >= 0, LINATTN_INVALID_VALUE,
                    "%s has stride %lld on axis %d; a stride must be at least 0", n.name,
                    static_cast<long long>(t.stride[axis]), axis);
    last += static_cast<__int128>(std::max<int64_t>(t.size[axis] - 1, 0)) * t.stride[axis];
    LINATTN_REQUIRE(last < (static_cast<__int128>(1) << 60), LINATTN_INVALID_VALUE,
                    "%s of shape %s spans more than 2^60 elements", n.name,
                    shape_text(t.size, t.rank).c_str());
  }
  if (access == Access::write)
    LINATTN_REQUIRE(!overlaps(t), LINATTN_INVALID_VALUE,
                    "%s has strides %s for shape %s, so elements share memory; an output must not",
                    n.name, shape_text(t.stride, t.rank).c_str(),
                    shape_text(t.size, t.rank).c_str());
  return LINATTN_OK;
}

Status require_type(const Named& n, uint32_t allowed) {
  const int32_t type = n.tensor->type;
  if (type > 0 && type < 32 && (allowed >> type & 1u)) return LINATTN_OK;
  std::string names;
  for (int32_t t = 1; t < 32; ++t)
    if (allowed >> t & 1u) names += (names.empty() ? "" : ", ") + type_name(t);
  return fail(LINATTN_INVALID_TYPE, "%s has type %s; allowed: %s", n.name, type_name(type).c_str(),
              names.c_str());
}

Status require_same_type(const Named& n, const Named& as) {
  LINATTN_REQUIRE(n.tensor->type == as.tensor->type, LINATTN_INVALID_TYPE,
                  "%s has type %s; allowed: %s, the type of %s", n.name,
                  type_name(n.tensor->type).c_str(), type_name(as.tensor->type).c_str(), as.name);
  return LINATTN_OK;
}

Status require_shape(const Named& n, const char* axes, std::initializer_list<int64_t> sizes) {
  const int rank = static_cast<int>(sizes.size());
  const linattn_tensor& t = *n.tensor;
  LINATTN_REQUIRE(t.rank == rank && std::equal(sizes.begin(), sizes.end(), t.size),
                  LINATTN_INVALID_VALUE, "%s has shape %s; allowed: %s = %s", n.name,
                  shape_text(t.size, t.rank).c_str(), axes,
                  shape_text(sizes.begin(), rank).c_str());
  return LINATTN_OK;
}

}  // namespace linattn
