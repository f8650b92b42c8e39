// Runs a call on a GPU through the C interface, every tensor among poison.
#pragma once

#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstdlib>
#include <memory>

#include "decode_calls.h"

namespace call {

#define CUDA_OK(expression)                                                                        \
  do {                                                                                             \
    if (const cudaError_t error_ = (expression); error_ != cudaSuccess) {                          \
      std::printf("%s:%d: %s: %s\n", __FILE__, __LINE__, #expression, cudaGetErrorString(error_)); \
      std::exit(1);                                                                                \
    }                                                                                              \
  } while (0)

inline constexpr size_t kGuard = 512;  // poison before and after each tensor

// A tensor's bytes on the device, `shift` bytes from an aligned address.
class DeviceCopy {
 public:
  DeviceCopy(const Tensor& t, size_t shift) : bytes_(t.data.size()), shift_(shift) {
    const std::vector<unsigned char> poison(total(), kPoison);
    CUDA_OK(cudaMalloc(&memory_, total()));
    CUDA_OK(cudaMemcpy(memory_, poison.data(), total(), cudaMemcpyHostToDevice));
    CUDA_OK(cudaMemcpy(data(), t.data.data(), bytes_, cudaMemcpyHostToDevice));
  }
  DeviceCopy(const DeviceCopy&) = delete;
  ~DeviceCopy() { (void)cudaFree(memory_); }

  char* data() const { return static_cast<char*>(memory_) + kGuard + shift_; }

  void read_back(Tensor* t) const {
    std::vector<unsigned char> all(total());
    CUDA_OK(cudaMemcpy(all.data(), memory_, total(), cudaMemcpyDeviceToHost));
    const size_t begin = kGuard + shift_;
    size_t damaged = 0;
    for (size_t i = 0; i < all.size(); ++i)
      damaged += (i < begin || i >= begin + bytes_) && all[i] != kPoison;
    CHECK_THAT(damaged == 0, "%zu bytes around a tensor were written", damaged);
    std::copy_n(all.begin() + static_cast<int64_t>(begin), bytes_, t->data.begin());
  }

 private:
  size_t total() const { return 2 * kGuard + bytes_ + 16; }
  void* memory_ = nullptr;
  size_t bytes_, shift_;
};

enum class How { direct, graph, misaligned };

inline void describe_on_device(Call& call, int32_t device) {
  call.problem.struct_size = sizeof(linattn_problem);
  call.problem.force = linattn_implementation_id("cuda_portable");
  linattn_tensor* described = &call.problem.q;
  for (int name = 0; name < kNames; ++name) {
    const Tensor& t = call.tensor[name];
    described[name] = {};
    described[name].type = t.type;
    described[name].rank = static_cast<int32_t>(t.size.size());
    described[name].device_type = LINATTN_DEVICE_CUDA;
    described[name].device_index = device;
    for (size_t axis = 0; axis < t.size.size(); ++axis) {
      described[name].size[axis] = t.size[axis];
      described[name].stride[axis] = t.stride[axis];
    }
  }
}

// `raw_workspace` leaves scratch as the allocator gave it, for the tool that looks for reads of it;
// otherwise it is poisoned.
inline bool run_on_device(Call& call, How how, int32_t device = 0, bool raw_workspace = false) {
  describe_on_device(call, device);
  linattn_plan_t plan = nullptr;
  const int32_t planned = linattn_plan(&call.problem, {LINATTN_DEVICE_CUDA, device}, &plan);
  CHECK_THAT(planned == LINATTN_OK, "%s", linattn_last_error());
  if (planned != LINATTN_OK) return false;
  int current = -1;
  CUDA_OK(cudaGetDevice(&current));
  CUDA_OK(cudaSetDevice(device));
  std::unique_ptr<DeviceCopy> copies[kNames];
  linattn_args args{};
  args.struct_size = sizeof(args);
  const int64_t scratch = linattn_plan_workspace_bytes(plan);
  if (scratch > 0) CUDA_OK(cudaMalloc(&args.workspace, static_cast<size_t>(scratch)));
  if (scratch > 0 && !raw_workspace)
    CUDA_OK(cudaMemset(args.workspace, 0xff, static_cast<size_t>(scratch)));
  const void** pointers = &args.q;
  for (int name = 0; name < kNames; ++name)
    if (const Tensor& t = call.tensor[name]; t.type != LINATTN_NONE) {
      copies[name] = std::make_unique<DeviceCopy>(
          t, how == How::misaligned ? static_cast<size_t>(bytes_of(t.type)) : 0);
      pointers[name] = copies[name]->data();
    }
  cudaStream_t stream;
  CUDA_OK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  CUDA_OK(cudaDeviceSynchronize());
  CUDA_OK(cudaSetDevice(current));  // the call must find its device by itself

  int32_t status;
  if (how == How::graph) {
    // Capture fails on any synchronisation, allocation or host read inside.
    cudaGraph_t graph;
    cudaGraphExec_t executable;
    CUDA_OK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
    status = linattn_run(plan, &args, stream);
    CUDA_OK(cudaStreamEndCapture(stream, &graph));
    CUDA_OK(cudaGraphInstantiate(&executable, graph, 0));
    CUDA_OK(cudaGraphLaunch(executable, stream));
    CUDA_OK(cudaStreamSynchronize(stream));
    CUDA_OK(cudaGraphExecDestroy(executable));
    CUDA_OK(cudaGraphDestroy(graph));
  } else {
    status = linattn_run(plan, &args, stream);
  }
  CHECK_THAT(status == LINATTN_OK, "%s", linattn_last_error());
  int after = -1;
  CUDA_OK(cudaGetDevice(&after));
  CHECK(after == current);
  const cudaError_t ran = cudaStreamSynchronize(stream);
  CHECK_THAT(ran == cudaSuccess, "%s", cudaGetErrorString(ran));
  if (ran != cudaSuccess) std::exit(check::finish());
  CUDA_OK(cudaStreamDestroy(stream));
  CUDA_OK(cudaFree(args.workspace));
  for (int name = 0; name < kNames; ++name)
    if (copies[name] != nullptr) copies[name]->read_back(&call.tensor[name]);
  linattn_plan_destroy(plan);
  return status == LINATTN_OK;
}

// Devices, or exit 77.
inline int devices_or_skip() {
  int devices = 0;
  const cudaError_t error = cudaGetDeviceCount(&devices);
  if (error == cudaSuccess && devices > 0) return devices;
  std::printf("skipped: no CUDA device (%s)\n", cudaGetErrorString(error));
  std::exit(77);
}

}  // namespace call
