// Kernels with one mistake each, which the emulator must find, and some without, for its own test
// (test_cuda_emulator.py).
#include <cstdint>
#include <cstring>
#include <string>

#include "emulator.h"
#include "guarded.h"

// Names that messages can tell, so no anonymous namespace.
namespace misuses {

constexpr unsigned kFullMask = 0xffffffffu;

// Every kernel has an output of `count` floats, and a read-only copy of it.
#define KERNEL(name)                                                                   \
  __global__ void name([[maybe_unused]] float* x, [[maybe_unused]] const float* input, \
                       [[maybe_unused]] int count)

struct Case {
  const char* name;
  void (*kernel)(float* x, const float* input, int count);
  int blocks;
  int threads;
};

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

KERNEL(barrier_against_shuffle) {
  if (threadIdx.x < 16) {
    __syncthreads();
  } else {
    x[threadIdx.x] = __shfl_sync(kFullMask, 1.0f, 0);
  }
}

KERNEL(shuffle_from_the_returned) {
  if (threadIdx.x == 3) return;
  x[threadIdx.x] = __shfl_sync(kFullMask, x[threadIdx.x], 3);
}

KERNEL(shuffle_outside_of_the_mask) {
  if (threadIdx.x < 16) x[threadIdx.x] = __shfl_sync(0xffffu, x[threadIdx.x], 20);
}

KERNEL(mask_without_itself) { x[threadIdx.x] = __shfl_sync(0xffffu, x[threadIdx.x], 0); }

KERNEL(different_masks) {
  const unsigned mask = threadIdx.x == 0 ? kFullMask : 0xfffffffeu;
  x[threadIdx.x] = static_cast<float>(__any_sync(mask, 1));
  __shfl_sync(kFullMask, 1, 0);
}

KERNEL(different_sites) {
  if (threadIdx.x % 2 == 0) {
    x[threadIdx.x] = __shfl_sync(kFullMask, 1.0f, 0);
  } else {
    x[threadIdx.x] = __shfl_sync(kFullMask, 2.0f, 0);
  }
}

KERNEL(read_after_the_end) { x[0] = __ldg(input + count + 4); }

KERNEL(read_just_after_the_end) { x[0] = __ldg(input + count); }

KERNEL(read_before_the_start) { x[0] = input[static_cast<int>(threadIdx.x) - 1]; }

KERNEL(write_after_the_end) { x[count + 4] = 1; }

// Within the last 16 bytes, where no page begins.
KERNEL(write_just_after_the_end) { reinterpret_cast<char*>(x + count)[3] = 1; }

KERNEL(write_to_an_input) { const_cast<float*>(input)[2] = 1; }

KERNEL(misaligned_load) { x[0] = __ldg(reinterpret_cast<const float4*>(input + 1)).x; }

KERNEL(misaligned_store) { *reinterpret_cast<float2*>(x + 1 + threadIdx.x) = make_float2(1, 2); }

KERNEL(index_outside_of_its_array) {
  float local[4] = {x[0], x[1], x[2], x[3]};
  x[0] = local[count - 63];
}

KERNEL(index_outside_of_shared_memory) {
  __shared__ float shared[32];
  shared[threadIdx.x] = 1;
  __syncthreads();
  x[threadIdx.x] = shared[0];
}

struct Large {
  float number[40000];
};
KERNEL(too_many_local_variables) {
  volatile Large large;
  for (int i = 0; i < 40000; ++i) large.number[i] = static_cast<float>(i);
  x[0] = large.number[threadIdx.x];
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

#define CASE(name, blocks, threads) {#name, name, blocks, threads}

const Case kCases[] = {
    CASE(divergent_shuffle, 2, 64),
    CASE(divergent_barrier, 2, 64),
    CASE(barrier_against_shuffle, 1, 32),
    CASE(shuffle_from_the_returned, 1, 32),
    CASE(shuffle_outside_of_the_mask, 1, 32),
    CASE(mask_without_itself, 1, 32),
    CASE(different_masks, 1, 32),
    CASE(different_sites, 1, 32),
    CASE(read_after_the_end, 1, 1),
    CASE(read_just_after_the_end, 1, 1),
    CASE(read_before_the_start, 1, 32),
    CASE(write_after_the_end, 1, 1),
    CASE(write_just_after_the_end, 1, 1),
    CASE(write_to_an_input, 1, 1),
    CASE(misaligned_load, 1, 1),
    CASE(misaligned_store, 1, 1),
    CASE(index_outside_of_its_array, 1, 1),
    CASE(index_outside_of_shared_memory, 1, 33),
    CASE(too_many_local_variables, 1, 1),
    CASE(stale_shared_memory, 2, 64),
    CASE(race, 2, 64),
    CASE(correct, 2, 100),
    {"too_many_threads", correct, 1, 1025},
};

std::string last_message;

}  // namespace misuses

extern "C" {

// Runs a case on x and a read-only copy of it, `count` floats each, between guard pages. Returns
// its cudaError_t, or -1 for an unknown name; emulated_message() has the rest.
int emulated_case(const char* name, float* x, int64_t count, uint64_t order) {
  using emulator::GuardedTensor;
  emulator::set_order(order);
  const auto bytes = static_cast<size_t>(count) * sizeof(float);
  const bool at_start = order % 2 == 1;
  GuardedTensor output("x", x, bytes, GuardedTensor::Access::kWrite, at_start);
  GuardedTensor input("y", x, bytes, GuardedTensor::Access::kRead, at_start);
  for (const misuses::Case& known : misuses::kCases) {
    if (std::strcmp(known.name, name) != 0) continue;
    cudaLaunchConfig_t config{};
    config.gridDim = dim3(known.blocks);
    config.blockDim = dim3(known.threads);
    const int status =
        cudaLaunchKernelEx(&config, known.kernel, static_cast<float*>(output.data()),
                           static_cast<const float*>(input.data()), static_cast<int>(count));
    misuses::last_message = status == cudaSuccess ? output.finish() : emulator::message();
    const bool spoiled = status == cudaSuccess && !misuses::last_message.empty();
    return spoiled ? static_cast<int>(cudaErrorLaunchFailure) : status;
  }
  return -1;
}

const char* emulated_message() { return misuses::last_message.c_str(); }

}  // extern "C"
