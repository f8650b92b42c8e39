// A JSON writer for the few texts the interface hands out.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "core/status.h"

namespace linattn {

class Json {
 public:
  Json& open(char bracket) { return raw(bracket), first_ = true, *this; }
  Json& close(char bracket) {
    first_ = false;
    text_ += bracket;
    return *this;
  }
  Json& key(std::string_view name) {
    string(name);
    text_ += ':';
    first_ = true;
    return *this;
  }
  Json& string(std::string_view value);
  Json& number(int64_t value) { return raw(std::to_string(value)); }
  Json& boolean(bool value) { return raw(value ? "true" : "false"); }
  Json& null() { return raw("null"); }
  const std::string& text() const { return text_; }

 private:
  Json& raw(std::string_view value) {
    if (!first_) text_ += ',';
    first_ = false;
    text_ += value;
    return *this;
  }
  Json& raw(char value) { return raw(std::string_view(&value, 1)); }

  std::string text_;
  bool first_ = true;  // no comma before the next value
};

// The calling convention of every text of the interface.
Status copy_text(const std::string& text, char* buffer, int64_t capacity, int64_t* length);

}  // namespace linattn
