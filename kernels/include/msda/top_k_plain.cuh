// The largest numbers of rows: "plain" of top_k_choice.h, which runs any problem. The kernel to
// read first.
//
// Problem   The indices of the K largest of the S numbers of a row, largest first. Of equal numbers
//           the first comes first, as in ONNX's TopK. NaN is the largest number, as in PyTorch.
// Layout    x [N,S] float, indices [N,K] int32.
// Threads   A thread counts the numbers that come before its number. The count is the number's
//           place in the result.
// Limits    those of check() in top_k_params.h. S^2 comparisons a row.
#pragma once

#include "msda/cuda_launch.cuh"
#include "msda/device.cuh"
#include "msda/top_k_params.h"

namespace msda {

inline constexpr int kPlainTopKThreads = 256;

// A number that is larger for numbers that come earlier, 0 for none. It holds the float in its
// upper half, and the complement of the index in its lower half.
__device__ __forceinline__ uint64_t top_k_key(float x, int index) {
  const uint32_t word = bits<uint32_t>(x + 0.0f);  // -0 equals 0
  uint32_t ordered = word & 0x80000000u ? ~word : word | 0x80000000u;
  if (x != x) ordered = 0xffffffffu;
  return static_cast<uint64_t>(ordered) << 32 | ~static_cast<uint32_t>(index);
}

__device__ __forceinline__ int top_k_index(uint64_t key) {
  return static_cast<int>(~static_cast<uint32_t>(key));
}

__global__ void __launch_bounds__(kPlainTopKThreads)
    top_k_plain_kernel(const __grid_constant__ TopKArguments arguments, int64_t numbers, int size,
                       int count) {
  const int64_t number = static_cast<int64_t>(blockIdx.x) * kPlainTopKThreads + threadIdx.x;
  if (number >= numbers) return;
  const int64_t row = number / size;
  const int index = static_cast<int>(number - row * size);
  const float* const x = arguments.x + row * size;
  const uint64_t own = top_k_key(x[index], index);
  int place = 0;
  for (int i = 0; i < size; ++i) place += top_k_key(x[i], i) > own;
  if (place < count) arguments.indices[row * count + place] = index;
}

inline cudaError_t launch_top_k_plain(const TopKProblem& problem, const TopKArguments& arguments,
                                      cudaStream_t stream) {
  const int64_t numbers = problem.rows * problem.size;
  return launch_linear(top_k_plain_kernel, numbers, kPlainTopKThreads, stream, arguments, numbers,
                       static_cast<int>(problem.size), static_cast<int>(problem.count));
}

}  // namespace msda
