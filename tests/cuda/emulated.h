// A call as the host side of a CUDA implementation gets it, on any machine.
#pragma once

#include "../cpp/call.h"
#include "recurrence/implementation.h"

namespace call {

inline linattn::DeviceFacts facts_of(int compute_capability) {
  linattn::DeviceFacts facts;
  facts.device = {LINATTN_DEVICE_CUDA, 0};
  facts.compute_capability = compute_capability;
  return facts;
}

inline bool plan(Call& call, linattn::Problem* problem) {
  call.problem.struct_size = sizeof(linattn_problem);
  linattn_tensor* described = &call.problem.q;
  for (int name = 0; name < kNames; ++name) {
    const Tensor& t = call.tensor[name];
    described[name] = {};
    described[name].type = t.type;
    described[name].rank = static_cast<int32_t>(t.size.size());
    described[name].device_type = LINATTN_DEVICE_CUDA;
    for (size_t axis = 0; axis < t.size.size(); ++axis) {
      described[name].size[axis] = t.size[axis];
      described[name].stride[axis] = t.stride[axis];
    }
  }
  const int32_t status = linattn::validate(call.problem, {LINATTN_DEVICE_CUDA, 0}, problem);
  CHECK_THAT(status == LINATTN_OK, "%s", linattn::last_error().c_str());
  return status == LINATTN_OK;
}

inline linattn_args args_of(Call& call) {
  linattn_args args{};
  const void** pointers = &args.q;
  for (int name = 0; name < kNames; ++name)
    pointers[name] =
        call.tensor[name].type == LINATTN_NONE ? nullptr : call.tensor[name].data.data();
  return args;
}

}  // namespace call
