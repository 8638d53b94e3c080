// Handles of CUDA's runtime that free themselves. Errors are std::runtime_error in one line.
#pragma once

#include <cuda_runtime_api.h>

#include <memory>
#include <vector>

namespace codetr {

// Throws "<call>: <CUDA's message>" unless the status is success.
void check(cudaError_t status, char const* call);

// Makes a GPU the thread's current one. Throws if there is none, or no such one.
void use_device(int device);

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

Stream make_stream();
Event make_event();

// Memory on the GPU and, if wanted, pinned memory of the same size on the host.
class Buffer {
 public:
  Buffer() = default;
  explicit Buffer(size_t size, bool pinned = true);

  size_t size() const { return size_; }
  void* device() const { return device_.get(); }
  template <class Number>
  Number* host() const {
    return static_cast<Number*>(host_.get());
  }

  // The first `size` bytes.
  void copy_to_device(size_t size, cudaStream_t stream) const;
  void copy_to_host(size_t size, cudaStream_t stream) const;

 private:
  size_t size_ = 0;
  std::unique_ptr<void, Destroyer<void*, cudaFree>> device_;
  std::unique_ptr<void, Destroyer<void*, cudaFreeHost>> host_;
};

// Milliseconds between two events around each of `runs` calls of `enqueue`, after a warm-up.
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
