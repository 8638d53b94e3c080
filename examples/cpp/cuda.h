// RAII handles for CUDA's runtime.
#pragma once

#include <cuda_runtime_api.h>

#include <memory>
#include <stdexcept>
#include <vector>

#include "errors.h"

namespace codetr {

// Throws std::runtime_error "<call>: <CUDA's message>" unless the status is success.
inline void check(cudaError_t status, char const* call) {
  if (status == cudaSuccess) return;
  throw std::runtime_error(concat(call, ": ", cudaGetErrorString(status)));
}

// Makes a GPU the thread's current one. Throws if there is none with this number.
inline void use_device(int device) {
  int count = 0;
  const cudaError_t status = cudaGetDeviceCount(&count);
  if (status != cudaSuccess || count == 0) {
    throw std::runtime_error(concat("there is no NVIDIA GPU (", cudaGetErrorString(status), ")"));
  }
  if (device >= count) {
    throw UsageError(
        concat("--device ", device, ": expected a number below ", count, ", the number of GPUs"));
  }
  check(cudaSetDevice(device), "cudaSetDevice");
}

template <class Handle, auto destroy>
struct Destroyer {
  using pointer = Handle;
  void operator()(Handle handle) const { destroy(handle); }
};
using Stream = std::unique_ptr<cudaStream_t, Destroyer<cudaStream_t, cudaStreamDestroy>>;
using Event = std::unique_ptr<cudaEvent_t, Destroyer<cudaEvent_t, cudaEventDestroy>>;
using Graph = std::unique_ptr<cudaGraph_t, Destroyer<cudaGraph_t, cudaGraphDestroy>>;
using GraphExec =
    std::unique_ptr<cudaGraphExec_t, Destroyer<cudaGraphExec_t, cudaGraphExecDestroy>>;

inline Stream make_stream() {
  cudaStream_t stream = nullptr;
  check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "cudaStreamCreateWithFlags");
  return Stream(stream);
}

inline Event make_event() {
  cudaEvent_t event = nullptr;
  check(cudaEventCreate(&event), "cudaEventCreate");
  return Event(event);
}

using DeviceMemory = std::unique_ptr<void, Destroyer<void*, cudaFree>>;
using PinnedMemory = std::unique_ptr<void, Destroyer<void*, cudaFreeHost>>;

inline DeviceMemory make_device_memory(size_t size) {
  void* memory = nullptr;
  check(cudaMalloc(&memory, size), "cudaMalloc");
  return DeviceMemory(memory);
}

inline PinnedMemory make_pinned_memory(size_t size) {
  void* memory = nullptr;
  check(cudaMallocHost(&memory, size), "cudaMallocHost");
  return PinnedMemory(memory);
}

// Measures `runs` calls of `enqueue` after a warm-up. Returns milliseconds between two events.
template <class Enqueue>
std::vector<float> time_on_gpu(cudaStream_t stream, int warmup, int runs, Enqueue&& enqueue) {
  const Event start = make_event(), end = make_event();
  for (int i = 0; i < warmup; ++i) enqueue();
  std::vector<float> samples(static_cast<size_t>(runs));
  for (float& sample : samples) {
    check(cudaEventRecord(start.get(), stream), "cudaEventRecord");
    enqueue();
    check(cudaEventRecord(end.get(), stream), "cudaEventRecord");
    check(cudaEventSynchronize(end.get()), "cudaEventSynchronize");
    check(cudaEventElapsedTime(&sample, start.get(), end.get()), "cudaEventElapsedTime");
  }
  return samples;
}

}  // namespace codetr
