// Copies on the host of the device data that the debug checks read.
#pragma once

#include <vector>

#include "core/status.h"
#include "recurrence/problem.h"

namespace linattn::cuda {

class HostCopies {
 public:
  // Waits for `stream`. Fails while it is captured.
  Status fetch(const Problem& problem, const linattn_args& args, int device, void* stream);

  // The call's arguments with the integer tensors, has_initial_state and a given g on the host.
  const linattn_args& args() const { return args_; }

 private:
  linattn_args args_{};
  std::vector<std::vector<char>> copies_;
};

}  // namespace linattn::cuda
