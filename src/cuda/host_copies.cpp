#include "cuda/host_copies.h"

#include <algorithm>

#include "cuda/device.h"

namespace linattn::cuda {
namespace {

// Elements from the first to behind the last of an axis-by-axis view.
int64_t extent(std::initializer_list<std::pair<int64_t, int64_t>> sizes_and_strides) {
  int64_t last = 0;
  for (const auto& [size, stride] : sizes_and_strides) {
    if (size == 0) return 0;
    last += (size - 1) * stride;
  }
  return last + 1;
}

int64_t extent(const IndexView& view, int64_t size, int64_t columns = 1) {
  return extent({{size, view.n}, {columns, view.c}});
}

}  // namespace

Status HostCopies::fetch(const Problem& p, const linattn_args& args, int device, void* stream) {
  const DeviceGuard guard(device);
  constexpr const char* kWhat = "a copy for the debug checks";
  if (guard.error() != cudaSuccess) return device_failure(guard.error(), kWhat, device);
  const auto queue = static_cast<cudaStream_t>(stream);
  cudaStreamCaptureStatus capture = cudaStreamCaptureStatusNone;
  if (const cudaError_t error = cudaStreamIsCapturing(queue, &capture); error != cudaSuccess)
    return device_failure(error, kWhat, device);
  LINATTN_REQUIRE(capture == cudaStreamCaptureStatusNone, LINATTN_INVALID_VALUE,
                  "stream is being captured; the debug checks read device data, so switch them off "
                  "while graphs are captured");
  args_ = args;
  const int64_t columns = std::max<int64_t>(p.state_columns, 1);
  const int64_t channels = p.gate == Gate::channel ? p.dim_k : 1;
  const bool given_gate = p.g.present() && p.gate_form == GateForm::given;
  const struct {
    const void** pointer;
    Type type;
    int64_t elements;
  } rows[] = {
      {&args_.cu_seqlens, p.cu_seqlens.type, extent(p.cu_seqlens, p.num_sequences + 1)},
      {&args_.state_indices, p.state_indices.type,
       extent(p.state_indices, p.num_sequences, columns)},
      {&args_.output_state_indices, p.output_state_indices.type,
       extent(p.output_state_indices, p.num_sequences, columns)},
      {&args_.has_initial_state, p.has_initial_state.type,
       extent(p.has_initial_state, p.num_sequences)},
      {&args_.num_accepted_tokens, p.num_accepted_tokens.type,
       extent(p.num_accepted_tokens, p.num_sequences)},
      {&args_.g, given_gate ? p.g.type : Type::none,
       extent({{p.batch, p.g.b}, {p.num_tokens, p.g.t}, {p.heads_v, p.g.h}, {channels, p.g.d}})}};
  for (const auto& row : rows) {
    if (row.type == Type::none || row.elements == 0) continue;
    copies_.emplace_back(static_cast<size_t>(row.elements * size_of(row.type)));
    const cudaError_t error = cudaMemcpyAsync(copies_.back().data(), *row.pointer,
                                              copies_.back().size(), cudaMemcpyDeviceToHost, queue);
    if (error != cudaSuccess) return device_failure(error, kWhat, device);
    *row.pointer = copies_.back().data();
  }
  const cudaError_t error = cudaStreamSynchronize(queue);
  return error == cudaSuccess ? static_cast<Status>(LINATTN_OK)
                              : device_failure(error, kWhat, device);
}

}  // namespace linattn::cuda
