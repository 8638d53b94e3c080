// RAII handles and timing for CUDA's runtime.
#pragma once

#include <cuda_runtime_api.h>

#include <memory>
#include <vector>

#include "files.h"
#include "network.h"

namespace codetr {

// Throws std::runtime_error "<call>: <CUDA's message>" unless the status is success.
inline void check(cudaError_t status, std::string const& call) {
  if (status == cudaSuccess) return;
  throw std::runtime_error(concat(call, ": ", cudaGetErrorString(status)));
}

// Makes a GPU the thread's current one.
inline void use_device(int device) {
  check(cudaSetDevice(device), concat("--device ", device, ": NVIDIA GPU not found"));
}

template <class Handle, auto destroy>
struct Destroyer {
  using pointer = Handle;
  void operator()(Handle handle) const { destroy(handle); }
};
template <class Handle, auto destroy>
using Owner = std::unique_ptr<Handle, Destroyer<Handle, destroy>>;

using Stream = Owner<cudaStream_t, cudaStreamDestroy>;
using Event = Owner<cudaEvent_t, cudaEventDestroy>;
using Graph = Owner<cudaGraph_t, cudaGraphDestroy>;
using GraphExec = Owner<cudaGraphExec_t, cudaGraphExecDestroy>;
using DeviceMemory = Owner<void*, cudaFree>;

// Returns the handle that create(&handle, arguments...) makes.
template <class Handle, class Create, class... Arguments>
Handle make(Create create, Arguments... arguments) {
  typename Handle::pointer handle{};
  check(create(&handle, arguments...), "CUDA");
  return Handle(handle);
}

// Measures `runs` calls of `enqueue` after a warm-up. Returns milliseconds between two events.
template <class Enqueue>
std::vector<float> time_on_gpu(cudaStream_t stream, int runs, Enqueue&& enqueue) {
  const auto start = make<Event>(cudaEventCreateWithFlags, cudaEventDefault);
  const auto end = make<Event>(cudaEventCreateWithFlags, cudaEventDefault);
  for (int i = 0; i < kWarmupRuns; ++i) enqueue();
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
