// The largest outputs of linear layers: "plain" of linear_max_choice.h, which runs any problem. The
// kernel to read first.
//
// Problem   out = max over n of (x weight^T + bias)[n] for each row of x.
// Layout    x [M,K] of T, weight [N,K], bias [N], out [M]. All but x, and sums, are float (double
//           with a double x).
// Threads   A warp computes a row. Its lanes share the products of an output.
// Limits    those of check() in linear_max_params.h. Deterministic: a fixed order of sums.
#pragma once

#include "msda/cuda_launch.cuh"
#include "msda/linear_max_params.h"
#include "msda/vector.cuh"

namespace msda {

inline constexpr int kPlainLinearMaxThreads = 256;

// The larger number; NaN if one of them is NaN.
template <typename Real>
__device__ __forceinline__ Real larger(Real a, Real b) {
  return b > a || b != b ? b : a;
}

template <typename T>
__global__ void __launch_bounds__(kPlainLinearMaxThreads)
    linear_max_plain_kernel(const __grid_constant__ LinearMaxArguments arguments, int64_t rows,
                            int inputs, int outputs) {
  using Real = Accumulate<T>;
  const int64_t thread = static_cast<int64_t>(blockIdx.x) * kPlainLinearMaxThreads + threadIdx.x;
  const int64_t row = thread / 32;
  if (row >= rows) return;  // the whole warp
  const int lane = static_cast<int>(thread % 32);
  const T* const x = static_cast<const T*>(arguments.x) + row * inputs;
  Real best = -INFINITY;
  for (int output = 0; output < outputs; ++output) {
    const Real* const weight =
        static_cast<const Real*>(arguments.weight) + static_cast<int64_t>(output) * inputs;
    Real sum = 0;
    for (int i = lane; i < inputs; i += 32) sum += widen(x[i]) * weight[i];
    sum = sum_over_group(sum, 32) + static_cast<const Real*>(arguments.bias)[output];
    best = larger(best, sum);
  }
  if (lane == 0) static_cast<Real*>(arguments.output)[row] = best;
}

template <typename T>
cudaError_t launch_linear_max_plain(const LinearMaxProblem& problem,
                                    const LinearMaxArguments& arguments, cudaStream_t stream) {
  return launch_linear(linear_max_plain_kernel<T>, problem.rows * 32, kPlainLinearMaxThreads,
                       stream, arguments, problem.rows, static_cast<int>(problem.inputs),
                       static_cast<int>(problem.outputs));
}

}  // namespace msda
