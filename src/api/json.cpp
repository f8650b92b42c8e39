#include "api/json.h"

#include <cstring>

namespace linattn {

Json& Json::string(std::string_view value) {
  std::string quoted = "\"";
  for (const char c : value) {
    if (c == '"' || c == '\\')
      quoted += {'\\', c};
    else if (static_cast<unsigned char>(c) < 0x20)
      quoted += format_text("\\u%04x", c);
    else
      quoted += c;
  }
  return raw(quoted + '"');
}

Status copy_text(const std::string& text, char* buffer, int64_t capacity, int64_t* length) {
  LINATTN_REQUIRE(length != nullptr, LINATTN_INVALID_VALUE, "length is null; it gets the length");
  *length = static_cast<int64_t>(text.size());
  if (capacity == 0) return LINATTN_OK;
  LINATTN_REQUIRE(buffer != nullptr, LINATTN_INVALID_VALUE,
                  "buffer is null; allowed with capacity 0");
  LINATTN_REQUIRE(capacity > *length, LINATTN_INVALID_VALUE,
                  "capacity is %lld; allowed here: 0, or at least %lld",
                  static_cast<long long>(capacity), static_cast<long long>(*length + 1));
  std::memcpy(buffer, text.c_str(), text.size() + 1);
  return LINATTN_OK;
}

}  // namespace linattn
