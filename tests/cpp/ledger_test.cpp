#include "core/ledger.h"

#include <cstdint>
#include <vector>

#include "check.h"

using linattn::Ledger;

namespace {

struct Scratch {
  float* a;
  double* b;
  uint16_t* c;
  float* nothing;
};

Scratch lay_out(Ledger& ledger, int64_t n) {
  return {ledger.take<float>(n), ledger.take<double>(3), ledger.take<uint16_t>(n + 1),
          ledger.take<float>(0)};
}

uintptr_t address(const void* p) { return reinterpret_cast<uintptr_t>(p); }

void counting_and_binding_agree() {
  for (const int64_t n : {0, 1, 63, 64, 65, 1000}) {
    Ledger counting;
    const Scratch none = lay_out(counting, n);
    CHECK(none.a == nullptr && none.b == nullptr && none.c == nullptr);

    std::vector<char> memory(static_cast<size_t>(counting.bytes()) + Ledger::kAlignment);
    char* base = memory.data() + (Ledger::kAlignment - address(memory.data())) % Ledger::kAlignment;
    Ledger binding(base);
    const Scratch s = lay_out(binding, n);
    CHECK(binding.bytes() == counting.bytes());
    CHECK(binding.bytes() % Ledger::kAlignment == 0);
    for (const void* p :
         {static_cast<void*>(s.a), static_cast<void*>(s.b), static_cast<void*>(s.c)})
      CHECK(address(p) % Ledger::kAlignment == 0);
    // Pieces follow each other without overlap and end inside.
    CHECK(address(s.a + n) <= address(s.b));
    CHECK(address(s.b + 3) <= address(s.c));
    CHECK(address(s.c + n + 1) <= address(base) + static_cast<uintptr_t>(binding.bytes()));
  }
}

void sizes_beyond_four_gigabytes_are_counted() {
  Ledger ledger;
  ledger.take<float>(int64_t{1} << 40);
  ledger.take<char>(1);
  CHECK(ledger.bytes() == (int64_t{1} << 42) + Ledger::kAlignment);
}

}  // namespace

int main() {
  counting_and_binding_agree();
  sizes_beyond_four_gigabytes_are_counted();
  return check::finish();
}
