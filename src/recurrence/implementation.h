// What an entry of an ordered list is, and what a plan remembers.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/status.h"
#include "recurrence/problem.h"

namespace linattn {

struct Launch {
  std::string name;
  int64_t grid[3] = {1, 1, 1};
  int64_t block = 1;         // threads; CPU tasks have 1
  int64_t shared_bytes = 0;  // dynamic shared memory of a CTA
  std::string note = "";     // how the work is cut, for people
};

struct Refusal {
  std::string implementation;
  std::string reason;
};

// What the planner may know of a device. Pure data, filled in once per device.
struct DeviceFacts {
  linattn_device device{};
  std::string name;
  std::string target;              // instruction set: "avx2", "sm_90"
  int threads = 1;                 // CPU
  int compute_capability = 0;      // CUDA: 90 for sm_90
  int num_sms = 0;                 // CUDA
  int64_t shared_bytes_block = 0;  // CUDA: opt-in maximum of one CTA
  std::string unavailable;         // why the device cannot run at all; empty: it can
};

struct Implementation;

struct Plan {
  Problem problem;
  DeviceFacts facts;
  const Implementation* implementation = nullptr;
  int64_t workspace_bytes = 0;
  std::vector<Launch> launches;
  std::vector<Refusal> refused;
  int64_t config[16] = {};  // the implementation's own row and sizes, filled in by its plan()
};

struct Implementation {
  const char* name;  // "cpu", "reference", "cuda_portable", ...
  int32_t device_type;
  // Why this entry does not take the problem; empty: it does.
  std::string (*reject)(const Problem& problem, const DeviceFacts& facts);
  // Fills in workspace_bytes, launches, config.
  void (*plan)(Plan* plan);
  // No allocation. CPU entries return when done, CUDA entries when launched on `stream`.
  Status (*run)(const Plan& plan, const linattn_args& args, void* stream);
};

}  // namespace linattn
