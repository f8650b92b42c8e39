// Rules that every tensor obeys: type, device, shape, strides. Each failure names the argument,
// its value and what is allowed.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <string>

#include "core/status.h"
#include "linattn/linattn.h"

namespace linattn {

// Sets of element types, as bits 1 << type.
inline constexpr uint32_t kFloatTypes = 1u << LINATTN_F32 | 1u << LINATTN_BF16 | 1u << LINATTN_F16;
inline constexpr uint32_t kF32 = 1u << LINATTN_F32;
inline constexpr uint32_t kF32OrBf16 = 1u << LINATTN_F32 | 1u << LINATTN_BF16;
inline constexpr uint32_t kIndexTypes = 1u << LINATTN_I32 | 1u << LINATTN_I64;
inline constexpr uint32_t kBoolType = 1u << LINATTN_BOOL;

enum class Access { read, write };

std::string type_name(int32_t type);
std::string device_name(int32_t type, int32_t index);
std::string shape_text(const int64_t* sizes, int rank);

struct Named {
  const char* name;
  const linattn_tensor* tensor;
  bool present() const { return tensor->type != LINATTN_NONE; }
  int64_t size(int axis) const { return tensor->size[axis]; }
  int64_t stride(int axis) const { return tensor->stride[axis]; }
};

Status require_present(const Named& t, const char* why);
Status require_absent(const Named& t, const char* why);
// Rank, sizes and strides in range, on `device`. For Access::write no two elements may share an
// address.
Status require_sane(const Named& t, linattn_device device, Access access);
Status require_type(const Named& t, uint32_t allowed);
Status require_same_type(const Named& t, const Named& as);
// `axes` is the text of the expected shape, such as "[B,T,HV,K]".
Status require_shape(const Named& t, const char* axes, std::initializer_list<int64_t> sizes);

}  // namespace linattn
