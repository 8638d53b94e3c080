// Layer normalisation with a result in 8 bits: "plain" of quantized_layer_norm_choice.h, which runs
// any problem. The kernel to read first.
//
// Problem   y = (x - mean) / sqrt(variance + eps) * weight + bias, with mean and variance over the
//           channels of a row (Layer Normalization, arXiv:1607.06450, eq. 3 and 4); out = y / scale
//           in 8 bits: rounded half to even, and saturated.
// Layout    x [M,C], weight [C], bias [C] of T, out [M,C] int8 or E4M3. Arithmetic is float.
// Threads   A warp computes a row: it reads the row three times.
// Limits    check() in quantized_layer_norm_params.h. Deterministic: a fixed order of sums.
#pragma once

#include "msda/cuda_launch.cuh"
#include "msda/quantize.cuh"
#include "msda/quantized_layer_norm_params.h"
#include "msda/vector.cuh"

namespace msda {

inline constexpr int kPlainLayerNormThreads = 256;

// Normalises rows of C channels, and multiplies by the reciprocal of the result's scale.
struct LayerNormNumbers {
  float channels, eps, inverse;

  explicit LayerNormNumbers(const QuantizedLayerNormProblem& problem)
      : channels(static_cast<float>(problem.channels)),
        eps(static_cast<float>(problem.eps)),
        inverse(1 / problem.scale) {}

  // The factor of a row's differences from its mean, whose squares have this sum.
  __device__ __forceinline__ float factor(float squares) const {
    return 1 / sqrtf(squares / channels + eps);
  }
  // A difference times its factor, as a number of the result.
  template <typename Q>
  __device__ __forceinline__ Q result(float normalised, float weight, float bias) const {
    return quantize<Q>(fmaf(normalised, weight, bias) * inverse);
  }
};

template <typename T, typename Q>
__global__ void __launch_bounds__(kPlainLayerNormThreads)
    quantized_layer_norm_plain_kernel(const __grid_constant__ QuantizedLayerNormArguments arguments,
                                      const __grid_constant__ LayerNormNumbers numbers,
                                      int64_t rows, int channels) {
  const int64_t thread = static_cast<int64_t>(blockIdx.x) * kPlainLayerNormThreads + threadIdx.x;
  const int64_t row = thread / 32;
  if (row >= rows) return;  // the whole warp
  const int lane = static_cast<int>(thread % 32);
  const T* const x = static_cast<const T*>(arguments.x) + row * channels;
  Q* const output = static_cast<Q*>(arguments.output) + row * channels;

  float sum = 0;
  for (int i = lane; i < channels; i += 32) sum += widen(x[i]);
  const float mean = sum_over_group(sum, 32) / numbers.channels;
  float squares = 0;
  for (int i = lane; i < channels; i += 32) {
    const float difference = widen(x[i]) - mean;
    squares += difference * difference;
  }
  const float factor = numbers.factor(sum_over_group(squares, 32));
  for (int i = lane; i < channels; i += 32) {
    const float weight = widen(static_cast<const T*>(arguments.weight)[i]);
    const float bias = widen(static_cast<const T*>(arguments.bias)[i]);
    output[i] = numbers.result<Q>((widen(x[i]) - mean) * factor, weight, bias);
  }
}

template <typename T, typename Q>
cudaError_t launch_quantized_layer_norm_plain(const QuantizedLayerNormProblem& problem,
                                              const QuantizedLayerNormArguments& arguments,
                                              cudaStream_t stream) {
  return launch_linear(quantized_layer_norm_plain_kernel<T, Q>, problem.rows * 32,
                       kPlainLayerNormThreads, stream, arguments, LayerNormNumbers(problem),
                       problem.rows, static_cast<int>(problem.channels));
}

}  // namespace msda
