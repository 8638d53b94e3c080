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

template <typename... Parameters, typename... Arguments>
int launch(int blocks, int threads, void (*kernel)(Parameters...), Arguments... arguments) {
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(blocks);
  config.blockDim = dim3(threads);
  return cudaLaunchKernelEx(&config, kernel, arguments...);
}

__global__ void divergent_shuffle(float* x) {
  if (threadIdx.x % 32 != 5) x[threadIdx.x] = __shfl_xor_sync(kFullMask, x[threadIdx.x], 1);
  __syncthreads();
}

__global__ void divergent_barrier(float* x) {
  if (threadIdx.x < 40) {
    x[threadIdx.x] += 1;
    __syncthreads();
  } else {
    __syncthreads();
  }
}

__global__ void barrier_against_shuffle(float* x) {
  if (threadIdx.x < 16) {
    __syncthreads();
  } else {
    x[threadIdx.x] = __shfl_sync(kFullMask, 1.0f, 0);
  }
}

__global__ void shuffle_from_the_returned(float* x) {
  if (threadIdx.x == 3) return;
  x[threadIdx.x] = __shfl_sync(kFullMask, x[threadIdx.x], 3);
}

__global__ void shuffle_outside_of_the_mask(float* x) {
  if (threadIdx.x < 16) x[threadIdx.x] = __shfl_sync(0xffffu, x[threadIdx.x], 20);
}

__global__ void mask_without_itself(float* x) {
  x[threadIdx.x] = __shfl_sync(0xffffu, x[threadIdx.x], 0);
}

__global__ void different_masks(float* x) {
  const unsigned mask = threadIdx.x == 0 ? kFullMask : 0xfffffffeu;
  x[threadIdx.x] = static_cast<float>(__any_sync(mask, 1));
  __shfl_sync(kFullMask, 1, 0);
}

__global__ void different_sites(float* x) {
  if (threadIdx.x % 2 == 0) {
    x[threadIdx.x] = __shfl_sync(kFullMask, 1.0f, 0);
  } else {
    x[threadIdx.x] = __shfl_sync(kFullMask, 2.0f, 0);
  }
}

__global__ void read_after_the_end(float* x, const float* input, int count) {
  x[0] = __ldg(input + count + 4);
}

__global__ void read_before_the_start(float* x, const float* input) {
  x[0] = input[static_cast<int>(threadIdx.x) - 1];
}

__global__ void write_after_the_end(float* x, int count) { x[count] = 1; }

// Within the last 16 bytes, where no page begins.
__global__ void write_just_after_the_end(float* x, int count) {
  reinterpret_cast<char*>(x + count)[3] = 1;
}

__global__ void write_to_an_input(const float* input) { const_cast<float*>(input)[2] = 1; }

__global__ void misaligned_load(float* x, const float* input) {
  x[0] = __ldg(reinterpret_cast<const float4*>(input + 1)).x;
}

__global__ void misaligned_store(float* x) {
  *reinterpret_cast<float2*>(x + 1 + threadIdx.x) = make_float2(1, 2);
}

__global__ void index_outside_of_its_array(float* x, int count) {
  float local[4] = {x[0], x[1], x[2], x[3]};
  x[0] = local[count];
}

__global__ void index_outside_of_shared_memory(float* x) {
  __shared__ float shared[32];
  shared[threadIdx.x] = 1;
  __syncthreads();
  x[threadIdx.x] = shared[0];
}

struct Large {
  float number[40000];
};
__global__ void too_many_local_variables(float* x) {
  volatile Large large;
  for (int i = 0; i < 40000; ++i) large.number[i] = static_cast<float>(i);
  x[0] = large.number[threadIdx.x];
}

// The kernels below have no mistake that must be found.

// Reads shared memory that the block has not written.
__global__ void stale_shared_memory(float* x) {
  __shared__ float shared[64];
  x[blockIdx.x * 64 + threadIdx.x] = shared[threadIdx.x];
  shared[threadIdx.x] = 1;
}

// Lacks the barrier that it needs, so its sums depend on the order of the threads.
__global__ void race(float* x) {
  __shared__ float shared[64];
  shared[threadIdx.x] = static_cast<float>(threadIdx.x);
  x[blockIdx.x * 64 + threadIdx.x] = shared[63 - threadIdx.x];
}

// Uses everything: x[block] becomes 100 * block + what its threads agree on.
__global__ void correct(float* x) {
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

struct Case {
  const char* name;
  int (*run)(float* x, const float* input, int count);
};

const Case kCases[] = {
    {"divergent_shuffle",
     [](float* x, const float*, int) { return launch(2, 64, divergent_shuffle, x); }},
    {"divergent_barrier",
     [](float* x, const float*, int) { return launch(2, 64, divergent_barrier, x); }},
    {"barrier_against_shuffle",
     [](float* x, const float*, int) { return launch(1, 32, barrier_against_shuffle, x); }},
    {"shuffle_from_the_returned",
     [](float* x, const float*, int) { return launch(1, 32, shuffle_from_the_returned, x); }},
    {"shuffle_outside_of_the_mask",
     [](float* x, const float*, int) { return launch(1, 32, shuffle_outside_of_the_mask, x); }},
    {"mask_without_itself",
     [](float* x, const float*, int) { return launch(1, 32, mask_without_itself, x); }},
    {"different_masks",
     [](float* x, const float*, int) { return launch(1, 32, different_masks, x); }},
    {"different_sites",
     [](float* x, const float*, int) { return launch(1, 32, different_sites, x); }},
    {"read_after_the_end",
     [](float* x, const float* input, int count) {
       return launch(1, 1, read_after_the_end, x, input, count);
     }},
    {"read_just_after_the_end",
     [](float* x, const float* input, int count) {
       return launch(1, 1, read_after_the_end, x, input, count - 4);
     }},
    {"read_before_the_start", [](float* x, const float* input,
                                 int) { return launch(1, 32, read_before_the_start, x, input); }},
    {"write_after_the_end",
     [](float* x, const float*, int count) {
       return launch(1, 1, write_after_the_end, x, count + 4);
     }},
    {"write_just_after_the_end",
     [](float* x, const float*, int count) {
       return launch(1, 1, write_just_after_the_end, x, count);
     }},
    {"write_to_an_input",
     [](float*, const float* input, int) { return launch(1, 1, write_to_an_input, input); }},
    {"misaligned_load",
     [](float* x, const float* input, int) { return launch(1, 1, misaligned_load, x, input); }},
    {"misaligned_store",
     [](float* x, const float*, int) { return launch(1, 1, misaligned_store, x); }},
    {"index_outside_of_its_array",
     [](float* x, const float*, int) { return launch(1, 1, index_outside_of_its_array, x, 4); }},
    {"index_outside_of_shared_memory",
     [](float* x, const float*, int) { return launch(1, 33, index_outside_of_shared_memory, x); }},
    {"too_many_local_variables",
     [](float* x, const float*, int) { return launch(1, 1, too_many_local_variables, x); }},
    {"stale_shared_memory",
     [](float* x, const float*, int) { return launch(2, 64, stale_shared_memory, x); }},
    {"race", [](float* x, const float*, int) { return launch(2, 64, race, x); }},
    {"correct", [](float* x, const float*, int) { return launch(2, 100, correct, x); }},
    {"too_many_threads", [](float* x, const float*, int) { return launch(1, 1025, correct, x); }},
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
    const int status = known.run(static_cast<float*>(output.data()),
                                 static_cast<const float*>(input.data()), static_cast<int>(count));
    misuses::last_message = status == cudaSuccess ? output.finish() : emulator::message();
    const bool spoiled = status == cudaSuccess && !misuses::last_message.empty();
    return spoiled ? static_cast<int>(cudaErrorLaunchFailure) : status;
  }
  return -1;
}

// The multiply-adds of 16-bit numbers, each kept as its 16 bits.
void emulated_multiply_adds(int bfloat16, const uint16_t* a, const uint16_t* b, const uint16_t* c,
                            uint16_t* result, int64_t count) {
  for (int64_t i = 0; i < count; ++i) {
    if (bfloat16 != 0) {
      const auto number = [](uint16_t x) { return emulator::bits<__nv_bfloat16>(x); };
      result[i] = emulator::bits<uint16_t>(__hfma(number(a[i]), number(b[i]), number(c[i])));
    } else {
      const auto number = [](uint16_t x) { return emulator::bits<__half>(x); };
      result[i] = emulator::bits<uint16_t>(__hfma(number(a[i]), number(b[i]), number(c[i])));
    }
  }
}

const char* emulated_message() { return misuses::last_message.c_str(); }

}  // extern "C"
