// Host stand-in for src/cuda/ptx/copy.cuh.
#pragma once

#include "../../simt.h"

namespace linattn::cuda::ptx {

inline char* dynamic_shared() { return simt::shared_memory; }
inline char* dynamic_shared_1024() { return simt::shared_memory; }
inline uint32_t shared_address(const void* pointer) {
  return static_cast<uint32_t>(static_cast<const char*>(pointer) - simt::shared_memory);
}
inline float2 load_pair(uint32_t address) { return simt::at_shared<float2>(address); }
inline void copy_16_async(uint32_t to, const void* from, bool exists = true) {
  if (to % 16 != 0 || to + 16 > simt::kSharedBytes) simt::stop("a copy to a wrong address");
  simt::Cta& c = *simt::cta;
  const simt::Copy copy{simt::shared_memory + to, exists ? static_cast<const char*>(from) : nullptr,
                        c.groups[c.running]};
  if (simt::late_copies)
    c.copies[c.running].push_back(copy);
  else
    copy.now();
}
inline void commit_copies() { ++simt::cta->groups[simt::cta->running]; }
template <int kPending>
void wait_copies() {
  simt::Cta& c = *simt::cta;
  std::erase_if(c.copies[c.running], [&](const simt::Copy& copy) {
    const bool due = copy.group < c.groups[c.running] - kPending;
    if (due) copy.now();
    return due;
  });
}

}  // namespace linattn::cuda::ptx
