// Linear layers with 8-bit inputs: "plain" of quantized_linear_choice.h, which runs any problem.
//
// Problem   y = (activation(x weight^T * scale + bias) + residual) * mask; out = y, or y /
//           output_scale in 8 bits: rounded half to even, and saturated.
// Layout    x [M,K], weight [N,K] int8 or E4M3, scale [N], bias [N] float, residual [M,N], mask
//           [M], out [M,N]. Sums are int32 (int8) or float (E4M3), and what follows them is float.
// Threads   those of linear_plain.cuh: a thread computes one result of a tile of 16 x 16.
// Limits    those of check() in quantized_linear_params.h. Deterministic: a fixed order of sums.
#pragma once

#include "msda/linear_plain.cuh"
#include "msda/quantize.cuh"
#include "msda/quantized_linear_params.h"

namespace msda {

__device__ __forceinline__ float widen(__nv_fp8_e4m3 x) { return static_cast<float>(x); }

// `inverse` is the reciprocal of the output's scale.
template <typename Q, typename T>
__global__ void __launch_bounds__(kPlainLinearSide* kPlainLinearSide)
    quantized_linear_plain_kernel(const __grid_constant__ QuantizedLinearArguments arguments,
                                  int rows, int inputs, int outputs, Activation activation,
                                  bool quantized_output, float inverse) {
  using Sum = decltype(widen(Q()));
  constexpr int kSide = kPlainLinearSide;
  __shared__ Sum x_tile[kSide][kSide];
  __shared__ Sum weight_tile[kSide][kSide + 1];  // without conflicts of banks down a column
  const int row_in_tile = static_cast<int>(threadIdx.x) / kSide;
  const int column_in_tile = static_cast<int>(threadIdx.x) % kSide;
  const int tiles_across = (outputs + kSide - 1) / kSide;
  const int first_row = static_cast<int>(blockIdx.x) / tiles_across * kSide;
  const int first_column = static_cast<int>(blockIdx.x) % tiles_across * kSide;
  const int row = first_row + row_in_tile, column = first_column + column_in_tile;

  // An element of a matrix with `inputs` columns; zero outside.
  const auto read = [&](const void* matrix, int matrix_row, int matrix_rows, int input) -> Sum {
    if (matrix_row >= matrix_rows || input >= inputs) return 0;
    return widen(static_cast<const Q*>(matrix)[static_cast<int64_t>(matrix_row) * inputs + input]);
  };

  Sum sum = 0;
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
  const float* const bias = static_cast<const float*>(arguments.bias);
  float y = fmaf(static_cast<float>(sum), static_cast<const float*>(arguments.scale)[column],
                 bias != nullptr ? bias[column] : 0.f);
  y = activate(activation, y);
  if (arguments.residual != nullptr) y += widen(static_cast<const T*>(arguments.residual)[place]);
  if (arguments.mask != nullptr) y *= widen(static_cast<const T*>(arguments.mask)[row]);
  if (quantized_output) {
    static_cast<Q*>(arguments.output)[place] = quantize<Q>(y * inverse);
  } else {
    static_cast<T*>(arguments.output)[place] = narrow<T>(y);
  }
}

template <typename Q, typename T>
cudaError_t launch_quantized_linear_plain(const QuantizedLinearProblem& problem,
                                          const QuantizedLinearArguments& arguments,
                                          cudaStream_t stream) {
  constexpr int64_t kSide = kPlainLinearSide, kThreads = kSide * kSide;
  const int64_t tiles =
      ((problem.rows + kSide - 1) / kSide) * ((problem.outputs + kSide - 1) / kSide);
  return launch_linear(quantized_linear_plain_kernel<Q, T>, tiles * kThreads, kThreads, stream,
                       arguments, static_cast<int>(problem.rows), static_cast<int>(problem.inputs),
                       static_cast<int>(problem.outputs), problem.activation,
                       problem.quantized_output, 1 / problem.output_scale);
}

}  // namespace msda
