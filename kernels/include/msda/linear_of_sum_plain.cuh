// Linear layers of a sum: "plain" of linear_of_sum_choice.h, which runs any problem. The kernel to
// read first.
//
// Problem   out = (x + addend) weight^T + bias, where x + addend is rounded to their type.
// Layout    x and addend [M,K], weight [N,K], bias [N], out [M,N]. Sums of products are float.
// Threads   A thread computes a number of the result. Those of a warp have neighbouring columns.
// Limits    check() in linear_of_sum_params.h. Deterministic: a fixed order of sums.
#pragma once

#include "msda/cuda_launch.cuh"
#include "msda/linear_of_sum_params.h"
#include "msda/vector.cuh"

namespace msda {

inline constexpr int kPlainLinearOfSumThreads = 256;

template <typename T>
__global__ void __launch_bounds__(kPlainLinearOfSumThreads)
    linear_of_sum_plain_kernel(const __grid_constant__ LinearOfSumArguments arguments,
                               int64_t count, int inputs, int outputs) {
  const int64_t index = static_cast<int64_t>(blockIdx.x) * kPlainLinearOfSumThreads + threadIdx.x;
  if (index >= count) return;
  const int64_t row = index / outputs;
  const int column = static_cast<int>(index - row * outputs);
  const T* const x = static_cast<const T*>(arguments.x) + row * inputs;
  const T* const addend = static_cast<const T*>(arguments.addend) + row * inputs;
  const T* const weight =
      static_cast<const T*>(arguments.weight) + static_cast<int64_t>(column) * inputs;
  float sum = 0;
  for (int i = 0; i < inputs; ++i) {
    const T input = narrow<T>(widen(x[i]) + widen(addend[i]));
    sum = fmaf(widen(input), widen(weight[i]), sum);
  }
  sum += widen(static_cast<const T*>(arguments.bias)[column]);
  static_cast<T*>(arguments.output)[index] = narrow<T>(sum);
}

template <typename T>
cudaError_t launch_linear_of_sum_plain(const LinearOfSumProblem& problem,
                                       const LinearOfSumArguments& arguments, cudaStream_t stream) {
  const int64_t count = problem.rows * problem.outputs;
  return launch_linear(linear_of_sum_plain_kernel<T>, count, kPlainLinearOfSumThreads, stream,
                       arguments, count, static_cast<int>(problem.inputs),
                       static_cast<int>(problem.outputs));
}

}  // namespace msda
