#include "cuda.h"

#include <stdexcept>

#include "errors.h"

namespace codetr {

void check(cudaError_t status, char const* call) {
  if (status == cudaSuccess) return;
  throw std::runtime_error(concat(call, ": ", cudaGetErrorString(status)));
}

void use_device(int device) {
  int count = 0;
  const cudaError_t status = cudaGetDeviceCount(&count);
  if (status != cudaSuccess || count == 0) {
    throw std::runtime_error(
        concat("there is no NVIDIA GPU (",
               status == cudaSuccess ? "CUDA counts none" : cudaGetErrorString(status), ")"));
  }
  if (device >= count) {
    throw UsageError(
        concat("--device ", device, ": expected a number below ", count, ", the number of GPUs"));
  }
  check(cudaSetDevice(device), "cudaSetDevice");
}

Stream make_stream() {
  cudaStream_t stream = nullptr;
  check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "cudaStreamCreateWithFlags");
  return Stream(stream);
}

Event make_event() {
  cudaEvent_t event = nullptr;
  check(cudaEventCreate(&event), "cudaEventCreate");
  return Event(event);
}

Buffer::Buffer(size_t size, bool pinned) : size_(size) {
  void* memory = nullptr;
  check(cudaMalloc(&memory, size), "cudaMalloc");
  device_.reset(memory);
  if (!pinned) return;
  check(cudaMallocHost(&memory, size), "cudaMallocHost");
  host_.reset(memory);
}

void Buffer::copy_to_device(size_t size, cudaStream_t stream) const {
  check(cudaMemcpyAsync(device(), host_.get(), size, cudaMemcpyHostToDevice, stream),
        "cudaMemcpyAsync");
}

void Buffer::copy_to_host(size_t size, cudaStream_t stream) const {
  check(cudaMemcpyAsync(host_.get(), device(), size, cudaMemcpyDeviceToHost, stream),
        "cudaMemcpyAsync");
}

}  // namespace codetr
