// Linear layers: "plain" of linear_choice.h, which runs any problem. The kernels to read first.
//
// Problem   out = (activation(x weight^T + bias) + residual) * mask; with a normalisation
//           out = (y - mean) / sqrt(variance + eps) * norm_weight + norm_bias, where y is the
//           former, with mean and variance of each row of y (Layer Normalization,
//           arXiv:1607.06450, eq. 3 and 4).
// Layout    x [M,K], weight [N,K], bias [N], residual [M,N], mask [M], norm_weight [N],
//           norm_bias [N], out [M,N]. Sums and what follows them are float (double with doubles).
// Threads   A block computes a tile of 16 x 16 results, a thread one of them. It passes through K
//           in steps of 16, with a tile of x and one of weight in shared memory. With a
//           normalisation, a block computes all tiles of 16 rows, three times: for the mean, for
//           the variance and for the result.
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

// Two tiles in shared memory.
template <typename Real>
struct PlainLinearTiles {
  Real x[kPlainLinearSide][kPlainLinearSide];
  Real weight[kPlainLinearSide][kPlainLinearSide + 1];  // without conflicts of banks down a column
};

// Returns a thread's number of y. All threads of a block call it with one first_row and one
// first_column of the tile. Numbers outside of y are undefined.
template <typename T, typename Real = Accumulate<T>>
__device__ __forceinline__ Real plain_linear(const LinearArguments& arguments,
                                             PlainLinearTiles<Real>& tiles, int first_row,
                                             int first_column, int rows, int inputs, int outputs,
                                             Activation activation) {
  constexpr int kSide = kPlainLinearSide;
  const int row_in_tile = static_cast<int>(threadIdx.x) / kSide;
  const int column_in_tile = static_cast<int>(threadIdx.x) % kSide;
  const int row = first_row + row_in_tile, column = first_column + column_in_tile;

  // An element of a matrix with `inputs` columns; zero outside.
  const auto read = [&](const void* matrix, int matrix_row, int matrix_rows, int input) -> Real {
    if (matrix_row >= matrix_rows || input >= inputs) return 0;
    return widen(static_cast<const T*>(matrix)[static_cast<int64_t>(matrix_row) * inputs + input]);
  };

  Real sum = 0;
  for (int first = 0; first < inputs; first += kSide) {
    const int input = first + column_in_tile;
    tiles.x[row_in_tile][column_in_tile] = read(arguments.x, row, rows, input);
    tiles.weight[row_in_tile][column_in_tile] =
        read(arguments.weight, first_column + row_in_tile, outputs, input);
    __syncthreads();
    for (int i = 0; i < kSide; ++i) {
      sum += tiles.x[row_in_tile][i] * tiles.weight[column_in_tile][i];
    }
    __syncthreads();
  }
  if (row >= rows || column >= outputs) return sum;
  const int64_t place = static_cast<int64_t>(row) * outputs + column;
  if (arguments.bias != nullptr) sum += widen(static_cast<const T*>(arguments.bias)[column]);
  sum = activate(activation, sum);
  if (arguments.residual != nullptr) sum += widen(static_cast<const T*>(arguments.residual)[place]);
  if (arguments.mask != nullptr) sum *= widen(static_cast<const T*>(arguments.mask)[row]);
  return sum;
}

template <typename T>
__global__ void __launch_bounds__(kPlainLinearSide* kPlainLinearSide)
    linear_plain_kernel(const __grid_constant__ LinearArguments arguments, int rows, int inputs,
                        int outputs, Activation activation) {
  constexpr int kSide = kPlainLinearSide;
  __shared__ PlainLinearTiles<Accumulate<T>> tiles;
  const int tiles_across = (outputs + kSide - 1) / kSide;
  const int first_row = static_cast<int>(blockIdx.x) / tiles_across * kSide;
  const int first_column = static_cast<int>(blockIdx.x) % tiles_across * kSide;
  const auto y =
      plain_linear<T>(arguments, tiles, first_row, first_column, rows, inputs, outputs, activation);
  const int row = first_row + static_cast<int>(threadIdx.x) / kSide;
  const int column = first_column + static_cast<int>(threadIdx.x) % kSide;
  if (row >= rows || column >= outputs) return;
  static_cast<T*>(arguments.output)[static_cast<int64_t>(row) * outputs + column] = narrow<T>(y);
}

template <typename T>
__global__ void __launch_bounds__(kPlainLinearSide* kPlainLinearSide)
    linear_plain_norm_kernel(const __grid_constant__ LinearArguments arguments, int rows,
                             int inputs, int outputs, Accumulate<T> eps) {
  using Real = Accumulate<T>;
  constexpr int kSide = kPlainLinearSide;
  __shared__ PlainLinearTiles<Real> tiles;
  const int first_row = static_cast<int>(blockIdx.x) * kSide;
  const int row = first_row + static_cast<int>(threadIdx.x) / kSide;
  // Calls take(column, y) for the numbers of y that the thread computes.
  const auto for_each = [&](const auto& take) {
    for (int first_column = 0; first_column < outputs; first_column += kSide) {
      const Real y = plain_linear<T>(arguments, tiles, first_row, first_column, rows, inputs,
                                     outputs, Activation::kNone);
      const int column = first_column + static_cast<int>(threadIdx.x) % kSide;
      if (row < rows && column < outputs) take(column, y);
    }
  };
  Real sum = 0, squares = 0;
  for_each([&](int, Real y) { sum += y; });
  const Real mean = sum_over_group(sum, kSide) / static_cast<Real>(outputs);
  for_each([&](int, Real y) { squares += (y - mean) * (y - mean); });
  const Real variance = sum_over_group(squares, kSide) / static_cast<Real>(outputs);
  const Real factor = 1 / sqrt(variance + eps);
  for_each([&](int column, Real y) {
    const Real weight = widen(static_cast<const T*>(arguments.norm_weight)[column]);
    const Real bias = widen(static_cast<const T*>(arguments.norm_bias)[column]);
    static_cast<T*>(arguments.output)[static_cast<int64_t>(row) * outputs + column] =
        narrow<T>((y - mean) * factor * weight + bias);
  });
}

template <typename T>
cudaError_t launch_linear_plain(const LinearProblem& problem, const LinearArguments& arguments,
                                cudaStream_t stream) {
  constexpr int64_t kSide = kPlainLinearSide, kThreads = kSide * kSide;
  const int64_t down = (problem.rows + kSide - 1) / kSide;
  const int64_t across = (problem.outputs + kSide - 1) / kSide;
  const int rows = static_cast<int>(problem.rows), inputs = static_cast<int>(problem.inputs),
            outputs = static_cast<int>(problem.outputs);
  if (problem.normed) {
    return launch_linear(linear_plain_norm_kernel<T>, down * kThreads, kThreads, stream, arguments,
                         rows, inputs, outputs, static_cast<Accumulate<T>>(problem.eps));
  }
  return launch_linear(linear_plain_kernel<T>, down * across * kThreads, kThreads, stream,
                       arguments, rows, inputs, outputs, problem.activation);
}

}  // namespace msda
