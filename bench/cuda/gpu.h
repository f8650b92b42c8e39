// What the GPU programs of this folder share: error checks, device memory, graph timing.
#pragma once

#include <cuda_runtime.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <vector>

#define GPU_CHECK(call)                                                  \
  do {                                                                   \
    if (const cudaError_t error_ = (call); error_ != cudaSuccess) {      \
      std::fprintf(stderr, "%s:%d: %s: %s\n", __FILE__, __LINE__, #call, \
                   cudaGetErrorString(error_));                          \
      std::exit(1);                                                      \
    }                                                                    \
  } while (0)

namespace gpu {

struct Memory {
  void* data = nullptr;
  explicit Memory(size_t bytes) { GPU_CHECK(cudaMalloc(&data, bytes > 0 ? bytes : 1)); }
  Memory(const Memory&) = delete;
  ~Memory() { (void)cudaFree(data); }
};

struct Timing {
  double best_ms, median_ms;
};

// Time of one launch inside a graph of `count` of them, over `replays` replays.
template <class Launch>
Timing graph_time(int count, int replays, Launch&& launch) {
  cudaStream_t stream;
  GPU_CHECK(cudaStreamCreate(&stream));
  launch(stream);
  GPU_CHECK(cudaStreamSynchronize(stream));
  cudaGraph_t graph;
  GPU_CHECK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
  for (int i = 0; i < count; ++i) launch(stream);
  GPU_CHECK(cudaStreamEndCapture(stream, &graph));
  cudaGraphExec_t executable;
  GPU_CHECK(cudaGraphInstantiate(&executable, graph, 0));
  cudaEvent_t begin, end;
  GPU_CHECK(cudaEventCreate(&begin));
  GPU_CHECK(cudaEventCreate(&end));
  std::vector<double> times;
  for (int i = 0; i < replays + 2; ++i) {
    GPU_CHECK(cudaEventRecord(begin, stream));
    GPU_CHECK(cudaGraphLaunch(executable, stream));
    GPU_CHECK(cudaEventRecord(end, stream));
    GPU_CHECK(cudaEventSynchronize(end));
    float ms = 0;
    GPU_CHECK(cudaEventElapsedTime(&ms, begin, end));
    if (i >= 2) times.push_back(ms / count);
  }
  GPU_CHECK(cudaEventDestroy(begin));
  GPU_CHECK(cudaEventDestroy(end));
  GPU_CHECK(cudaGraphExecDestroy(executable));
  GPU_CHECK(cudaGraphDestroy(graph));
  GPU_CHECK(cudaStreamDestroy(stream));
  std::sort(times.begin(), times.end());
  return {times.front(), times[times.size() / 2]};
}

}  // namespace gpu
