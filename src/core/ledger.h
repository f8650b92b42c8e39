// Workspace ledger: one function lays scratch out, once to count (plan), once to bind (run).
#pragma once

#include <cstdint>

namespace linattn {

class Ledger {
 public:
  static constexpr int64_t kAlignment = 256;

  // Counting mode with a null base, binding mode otherwise.
  explicit Ledger(void* base = nullptr) : base_(static_cast<char*>(base)) {}

  // Place for `count` elements; null in counting mode.
  template <class T>
  T* take(int64_t count) {
    const int64_t offset = bytes_;
    bytes_ += (count * static_cast<int64_t>(sizeof(T)) + kAlignment - 1) / kAlignment * kAlignment;
    return base_ == nullptr ? nullptr : reinterpret_cast<T*>(base_ + offset);
  }

  int64_t bytes() const { return bytes_; }

 private:
  char* base_;
  int64_t bytes_ = 0;
};

}  // namespace linattn
