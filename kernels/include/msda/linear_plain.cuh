// Linear layers: "plain" of linear_choice.h, which runs any problem. The kernel to read first.
//
// Problem   out = (activation(x weight^T + bias) + residual) * mask.
// Layout    x [M,K], weight [N,K], bias [N], residual [M,N], mask [M], out [M,N]. Sums and
//           what follows them are float (double with doubles).
// Threads   A block computes a tile of 16 x 16 results, a thread one of them. It passes through K
// in
//           steps of 16, with a tile of x and one of weight in shared memory.
// Limits    those of check() in linear_params.h. Deterministic: a fixed order of sums.
#pragma once

#include "msda/cuda_launch.cuh"
#include "msda/linear_params.h"
#include "msda/vector.cuh"

namespace msda {

inline constexpr int kPlainLinearSide = 16;

template <typename Real>
__device__ __forceinline__ Real activate(Activation activation, Real x) {
  switch (activation) {
    case Activation::kGelu:
      return x * (1 + erf(x * static_cast<Real>(0.7071067811865475244))) / 2;
    case Activation::kRelu:
      return x < 0 ? Real(0) : x;  // NaN stays
    default:
      return x;
  }
}

template <typename T>
__global__ void __launch_bounds__(kPlainLinearSide* kPlainLinearSide)
    linear_plain_kernel(const __grid_constant__ LinearArguments arguments, int rows, int inputs,
                        int outputs, Activation activation) {
  using Real = Accumulate<T>;
  constexpr int kSide = kPlainLinearSide;
  __shared__ Real x_tile[kSide][kSide];
  __shared__ Real weight_tile[kSide][kSide + 1];  // without conflicts of banks down a column
  const int row_in_tile = static_cast<int>(threadIdx.x) / kSide;
  const int column_in_tile = static_cast<int>(threadIdx.x) % kSide;
  const int tiles_across = (outputs + kSide - 1) / kSide;
  const int first_row = static_cast<int>(blockIdx.x) / tiles_across * kSide;
  const int first_column = static_cast<int>(blockIdx.x) % tiles_across * kSide;
  const int row = first_row + row_in_tile, column = first_column + column_in_tile;

  // An element of a matrix with `inputs` columns; zero outside.
  const auto read = [&](const void* matrix, int matrix_row, int matrix_rows, int input) -> Real {
    if (matrix_row >= matrix_rows || input >= inputs) return 0;
    return widen(static_cast<const T*>(matrix)[static_cast<int64_t>(matrix_row) * inputs + input]);
  };

  Real sum = 0;
  for (int first = 0; first < inputs; first += kSide) {
    const int input = first + column_in_tile;
    x_tile[row_in_tile][column_in_tile] = read(arguments.x, row, rows, input);
    weight_tile[row_in_tile][column_in_tile] =
        read(arguments.weight, first_column + row_in_tile, outputs, input);
    __syncthreads();
    for (int i = 0; i < kSide; ++i) sum += x_tile[row_in_tile][i] * weight_tile[column_in_tile][i];
    __syncthreads();
  }
  if (row >= rows || column >= outputs) return;
  const int64_t place = static_cast<int64_t>(row) * outputs + column;
  if (arguments.bias != nullptr) sum += widen(static_cast<const T*>(arguments.bias)[column]);
  sum = activate(activation, sum);
  if (arguments.residual != nullptr) sum += widen(static_cast<const T*>(arguments.residual)[place]);
  if (arguments.mask != nullptr) sum *= widen(static_cast<const T*>(arguments.mask)[row]);
  static_cast<T*>(arguments.output)[place] = narrow<T>(sum);
}

template <typename T>
cudaError_t launch_linear_plain(const LinearProblem& problem, const LinearArguments& arguments,
                                cudaStream_t stream) {
  constexpr int64_t kSide = kPlainLinearSide, kThreads = kSide * kSide;
  const int64_t tiles =
      ((problem.rows + kSide - 1) / kSide) * ((problem.outputs + kSide - 1) / kSide);
  return launch_linear(linear_plain_kernel<T>, tiles * kThreads, kThreads, stream, arguments,
                       static_cast<int>(problem.rows), static_cast<int>(problem.inputs),
                       static_cast<int>(problem.outputs), problem.activation);
}

}  // namespace msda
