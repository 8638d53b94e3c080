// Kernels with one mistake each, which the emulator must find, and some without, for its own test
// (test_cuda_emulator.py).
#include <cstdint>
#include <string>

#include "emulator.h"
#include "guarded.h"

namespace {

constexpr unsigned kFullMask = 0xffffffffu;
std::string last_message;

}  // namespace

// Every kernel has an output of `count` floats, and a read-only copy of it. ctypes finds it by
// name.
#define KERNEL(name)                                                                              \
  extern "C" __global__ void name([[maybe_unused]] float* x, [[maybe_unused]] const float* input, \
                                  [[maybe_unused]] int count)

KERNEL(divergent_shuffle) {
  if (threadIdx.x % 32 != 5) x[threadIdx.x] = __shfl_xor_sync(kFullMask, x[threadIdx.x], 1);
  __syncthreads();
}

KERNEL(divergent_barrier) {
  if (threadIdx.x < 40) {
    x[threadIdx.x] += 1;
    __syncthreads();
  } else {
    __syncthreads();
  }
}

KERNEL(shuffle_from_the_returned) {
  if (threadIdx.x == 3) return;
  x[threadIdx.x] = __shfl_sync(kFullMask, x[threadIdx.x], 3);
}

KERNEL(mask_without_itself) { x[threadIdx.x] = __shfl_sync(0xffffu, x[threadIdx.x], 0); }

KERNEL(different_sites) {
  if (threadIdx.x % 2 == 0) {
    x[threadIdx.x] = __shfl_sync(kFullMask, 1.0f, 0);
  } else {
    x[threadIdx.x] = __shfl_sync(kFullMask, 2.0f, 0);
  }
}

KERNEL(read_after_the_end) { x[0] = __ldg(input + count + 4); }

KERNEL(read_just_after_the_end) { x[0] = __ldg(input + count); }

// Within the last 16 bytes, where no page begins.
KERNEL(write_just_after_the_end) { reinterpret_cast<char*>(x + count)[3] = 1; }

KERNEL(write_to_an_input) { const_cast<float*>(input)[2] = 1; }

KERNEL(misaligned_load) { x[0] = __ldg(reinterpret_cast<const float4*>(input + 1)).x; }

KERNEL(index_outside_of_shared_memory) {
  __shared__ float shared[32];
  shared[threadIdx.x] = 1;
  __syncthreads();
  x[threadIdx.x] = shared[0];
}

// The kernels below have no mistake that must be found.

// Reads shared memory that the block has not written.
KERNEL(stale_shared_memory) {
  __shared__ float shared[64];
  x[blockIdx.x * 64 + threadIdx.x] = shared[threadIdx.x];
  shared[threadIdx.x] = 1;
}

// Lacks the barrier that it needs, so its sums depend on the order of the threads.
KERNEL(race) {
  __shared__ float shared[64];
  shared[threadIdx.x] = static_cast<float>(threadIdx.x);
  x[blockIdx.x * 64 + threadIdx.x] = shared[63 - threadIdx.x];
}

// Uses everything: x[block] becomes 100 * block + what its threads agree on.
KERNEL(correct) {
  __shared__ int total;
  if (threadIdx.x >= 70) return;
  if (threadIdx.x == 0) total = 0;
  __syncthreads();
  const int lane = static_cast<int>(threadIdx.x) % 32;
  int sum = 1;
  if (threadIdx.x < 64) {
    for (int distance = 16; distance > 0; distance /= 2) {
      sum += __shfl_xor_sync(kFullMask, sum, distance);
    }
    int before = 1;
    for (int distance = 1; distance < 32; distance *= 2) {
      const int other = __shfl_up_sync(kFullMask, before, distance);
      if (lane >= distance) before += other;
    }
    const bool right = before == lane + 1 && __popc(__ballot_sync(kFullMask, lane < 7)) == 7 &&
                       __shfl_sync(kFullMask, lane, 9, 4) == lane / 4 * 4 + 1 &&
                       !__all_sync(kFullMask, lane > 0) && __any_sync(kFullMask, lane == 31);
    if (lane == 0) atomicAdd(&total, right ? sum : 1000);
  } else if (lane < 2) {
    // Part of a warp, by its own mask, twice.
    const int other = __shfl_xor_sync(3u, lane + 5, 1);
    if (__all_sync(3u, other == 6 - lane)) atomicAdd(&total, 1);
  }
  __syncthreads();
  if (threadIdx.x == 69) x[blockIdx.x] = static_cast<float>(100 * blockIdx.x + total);
}

extern "C" {

// Runs a kernel on x and a read-only copy of it, `count` floats each, between guard pages. Returns
// its cudaError_t; emulated_message() has the rest.
int emulated_case(void (*kernel)(float*, const float*, int), int blocks, int threads, float* x,
                  int64_t count, uint64_t order) {
  using emulator::GuardedTensor;
  emulator::set_order(order);
  const auto bytes = static_cast<size_t>(count) * sizeof(float);
  const bool at_start = order % 2 == 1;
  GuardedTensor output("x", x, bytes, GuardedTensor::Access::kWrite, at_start);
  GuardedTensor input("y", x, bytes, GuardedTensor::Access::kRead, at_start);
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(blocks);
  config.blockDim = dim3(threads);
  const int status =
      cudaLaunchKernelEx(&config, kernel, static_cast<float*>(output.data()),
                         static_cast<const float*>(input.data()), static_cast<int>(count));
  last_message = status == cudaSuccess ? output.finish() : emulator::message();
  const bool spoiled = status == cudaSuccess && !last_message.empty();
  return spoiled ? static_cast<int>(cudaErrorLaunchFailure) : status;
}

const char* emulated_message() { return last_message.c_str(); }

}  // extern "C"
