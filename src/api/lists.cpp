#include "api/lists.h"

#include <algorithm>

#include "core/thread_pool.h"
#include "cpu/cpu.h"
#include "reference/reference.h"
#ifdef LINATTN_WITH_CUDA
#include "cuda/cuda.h"
#endif

namespace linattn {
namespace {

const std::vector<const Implementation*> kChunkForward = {
#ifdef LINATTN_WITH_CUDA
    &cuda::chunk_forward_sm90, &cuda::chunk_forward, &cuda::chunk_forward_by_token,
#endif
    &cpu::chunk_forward, &reference::chunk_forward};
const std::vector<const Implementation*> kRecurrentForward = {
#ifdef LINATTN_WITH_CUDA
    &cuda::recurrent_forward,
#endif
    &cpu::recurrent_forward, &reference::recurrent_forward};
const std::vector<const Implementation*> kBackward = {
#ifdef LINATTN_WITH_CUDA
    &cuda::backward, &cuda::backward_by_token,
#endif
    &cpu::backward, &reference::backward};

}  // namespace

const char* list_name(List list) {
  switch (list) {
    case List::chunk_forward:
      return "chunk_forward";
    case List::recurrent_forward:
      return "recurrent_forward";
    case List::backward:
      return "backward";
  }
  return "";
}

List list_of(const Problem& problem) {
  if (problem.pass == Pass::backward) return List::backward;
  return problem.form == Form::chunk ? List::chunk_forward : List::recurrent_forward;
}

std::span<const Implementation* const> implementations(List list) {
  switch (list) {
    case List::chunk_forward:
      return kChunkForward;
    case List::recurrent_forward:
      return kRecurrentForward;
    case List::backward:
      return kBackward;
  }
  return {};
}

const std::vector<std::string>& implementation_names() {
  static const std::vector<std::string> names = [] {
    std::vector<std::string> found;
    for (List list : kLists)
      for (const Implementation* entry : implementations(list))
        if (std::find(found.begin(), found.end(), entry->name) == found.end())
          found.push_back(entry->name);
    return found;
  }();
  return names;
}

int32_t implementation_id(const std::string& name) {
  const auto& names = implementation_names();
  const auto at = std::find(names.begin(), names.end(), name);
  return at == names.end() ? -1 : static_cast<int32_t>(at - names.begin()) + 1;
}

DeviceFacts device_facts(linattn_device device) {
#ifdef LINATTN_WITH_CUDA
  if (device.type == LINATTN_DEVICE_CUDA) return cuda::device_facts(device.index);
#endif
  DeviceFacts facts;
  facts.device = device;
  if (device.type == LINATTN_DEVICE_CPU) {
    facts.name = "cpu";
    facts.target = cpu::target_name();
    facts.threads = num_threads();
  } else {
    facts.name = format_text("cuda:%d", device.index);
    facts.unavailable = "this build has no CUDA kernels";
  }
  return facts;
}

}  // namespace linattn
