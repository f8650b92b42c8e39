#include "cuda/device.h"

#include <mutex>

#include "cuda/cuda.h"

namespace linattn::cuda {
namespace {

std::string error_text(cudaError_t error) {
  return format_text("%s: %s", cudaGetErrorName(error), cudaGetErrorString(error));
}

DeviceFacts read_facts(int index) {
  DeviceFacts facts;
  facts.device = {LINATTN_DEVICE_CUDA, index};
  facts.name = format_text("cuda:%d", index);
  const auto unavailable = [&](std::string reason) {
    (void)cudaGetLastError();
    facts.unavailable = std::move(reason);
    return facts;
  };
  int count = 0;  // left unwritten by the runtime where there is no driver
  if (const cudaError_t error = cudaGetDeviceCount(&count); error != cudaSuccess)
    return unavailable("no CUDA device can be used (" + error_text(error) + ")");
  if (index < 0 || index >= count)
    return unavailable(format_text("cuda:%d does not exist; this process sees %d", index, count));

  int major = 0, minor = 0, sms = 0, shared = 0;
  const struct {
    cudaDeviceAttr attribute;
    int* value;
  } rows[] = {{cudaDevAttrComputeCapabilityMajor, &major},
              {cudaDevAttrComputeCapabilityMinor, &minor},
              {cudaDevAttrMultiProcessorCount, &sms},
              {cudaDevAttrMaxSharedMemoryPerBlockOptin, &shared}};
  for (const auto& row : rows)
    if (const cudaError_t error = cudaDeviceGetAttribute(row.value, row.attribute, index);
        error != cudaSuccess)
      return unavailable(
          format_text("cuda:%d does not answer (%s)", index, error_text(error).c_str()));
  cudaDeviceProp properties;
  if (cudaGetDeviceProperties(&properties, index) == cudaSuccess)
    facts.name = format_text("cuda:%d (%s)", index, properties.name);
  facts.compute_capability = major * 10 + minor;
  facts.num_sms = sms;
  facts.shared_bytes_block = shared;
  if (facts.compute_capability < 80)
    facts.unavailable = format_text("%s has compute capability %d.%d; the kernels need 8.0",
                                    facts.name.c_str(), major, minor);
  return facts;
}

}  // namespace

DeviceFacts device_facts(int index) {
  constexpr int kRemembered = 64;
  static std::once_flag once[kRemembered];
  static DeviceFacts facts[kRemembered];
  if (index < 0 || index >= kRemembered) return read_facts(index);
  std::call_once(once[index], [&] { facts[index] = read_facts(index); });
  return facts[index];
}

DeviceGuard::DeviceGuard(int index) {
  int current = -1;
  error_ = cudaGetDevice(&current);
  if (error_ != cudaSuccess || current == index) return;
  error_ = cudaSetDevice(index);
  if (error_ == cudaSuccess) previous_ = current;
}

DeviceGuard::~DeviceGuard() {
  if (previous_ >= 0) (void)cudaSetDevice(previous_);
}

Status device_failure(cudaError_t error, const char* launch, int device) {
  (void)cudaGetLastError();
  return fail(LINATTN_DEVICE_FAILURE, "%s on cuda:%d failed: %s", launch, device,
              error_text(error).c_str());
}

void prepare_kernel(const void* kernel, int shared_bytes, int device) {
  const DeviceGuard guard(device);
  cudaFuncAttributes attributes;
  cudaError_t error = cudaFuncGetAttributes(&attributes, kernel);
  if (error == cudaSuccess && shared_bytes > attributes.maxDynamicSharedSizeBytes)
    error = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shared_bytes);
  if (error != cudaSuccess) (void)cudaGetLastError();
}

Status launch(const LaunchShape& shape, const void* kernel, const void* params, int device,
              void* stream) {
  const DeviceGuard guard(device);
  cudaLaunchAttribute attribute = {};
  attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attribute.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(static_cast<unsigned>(shape.grid), 1, 1);
  config.blockDim = dim3(static_cast<unsigned>(shape.block), 1, 1);
  config.dynamicSmemBytes = static_cast<size_t>(shape.shared_bytes);
  config.stream = static_cast<cudaStream_t>(stream);
  config.attrs = &attribute;
  config.numAttrs = shape.overlaps_previous ? 1 : 0;
  void* arguments[] = {const_cast<void*>(params)};
  cudaError_t error = guard.error();
  if (error == cudaSuccess) error = cudaLaunchKernelExC(&config, kernel, arguments);
  if (error == cudaSuccess) return LINATTN_OK;
  const std::string what = format_text("the launch of %s (grid %lld, block %d)", shape.name,
                                       static_cast<long long>(shape.grid), shape.block);
  return device_failure(error, what.c_str(), device);
}

}  // namespace linattn::cuda
