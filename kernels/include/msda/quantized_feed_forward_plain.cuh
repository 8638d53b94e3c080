// Feed-forward blocks in int8: "plain" of quantized_feed_forward_choice.h, which runs any problem.
//
// Problem   hidden = relu(q weight1^T * scale1 + bias1) / hidden_scale in int8, where q is x /
//           x_scale in int8; int8 is rounded half to even, and saturated.
//           out = (y - mean) / sqrt(variance + eps) * norm_weight + norm_bias, where y = x + hidden
//           weight2^T * scale2 + bias2, with mean and variance of each row of y (Layer
//           Normalization, arXiv:1607.06450, eq. 3 and 4).
//           Where it is wanted, also the rounded out / next_scale in int8.
// Layout    x [M,C], weight1 [H,C] and weight2 [C,H] int8, scale1, bias1 [H] and scale2, bias2 [C]
//           float, norm_weight, norm_bias [C], out [M,C]. Sums of products are int32, and what
//           follows them is float.
// Threads   A block computes a row, and keeps q, hidden and y in shared memory. A thread computes a
//           hidden number at a time, then a number of y. Every warp adds up all of y.
// Limits    check() in quantized_feed_forward_params.h. Deterministic: a fixed order of sums.
#pragma once

#include "msda/feed_forward_plain.cuh"
#include "msda/quantize.cuh"
#include "msda/quantized_feed_forward_params.h"

namespace msda {

__device__ __forceinline__ float int8_dot(const int8_t* one, const int8_t* other, int count) {
  int32_t sum = 0;
  for (int i = 0; i < count; ++i) sum += one[i] * other[i];
  return static_cast<float>(sum);
}

// `x_inverse`, `hidden_inverse` and `next_inverse` are the reciprocals of the scales.
template <typename T>
__global__ void __launch_bounds__(kPlainFeedForwardThreads) quantized_feed_forward_plain_kernel(
    const __grid_constant__ QuantizedFeedForwardArguments arguments, int channels, int hidden,
    float x_inverse, float hidden_inverse, float next_inverse, float eps) {
  __shared__ int8_t q[kFeedForwardMostChannels];
  __shared__ int8_t hidden_row[kFeedForwardMostHidden];
  __shared__ float y[kFeedForwardMostChannels];
  const int thread = static_cast<int>(threadIdx.x);
  const int64_t row = blockIdx.x;
  const T* const x = static_cast<const T*>(arguments.x) + row * channels;

  for (int i = thread; i < channels; i += kPlainFeedForwardThreads) {
    q[i] = quantize<int8_t>(widen(x[i]) * x_inverse);
  }
  __syncthreads();
  for (int i = thread; i < hidden; i += kPlainFeedForwardThreads) {
    const int8_t* const weight = static_cast<const int8_t*>(arguments.weight1) + i * channels;
    const float number =
        fmaf(int8_dot(q, weight, channels), static_cast<const float*>(arguments.scale1)[i],
             static_cast<const float*>(arguments.bias1)[i]);
    hidden_row[i] = quantize<int8_t>(fmaxf(number, 0) * hidden_inverse);
  }
  __syncthreads();
  for (int i = thread; i < channels; i += kPlainFeedForwardThreads) {
    const int8_t* const weight = static_cast<const int8_t*>(arguments.weight2) + i * hidden;
    y[i] = widen(x[i]) + fmaf(int8_dot(hidden_row, weight, hidden),
                              static_cast<const float*>(arguments.scale2)[i],
                              static_cast<const float*>(arguments.bias2)[i]);
  }
  __syncthreads();

  normalise_row<T>(y, arguments, channels, eps, [&](int i, T out) {
    const int64_t index = row * channels + i;
    static_cast<T*>(arguments.output)[index] = out;
    if (arguments.quantized != nullptr) {
      static_cast<int8_t*>(arguments.quantized)[index] =
          quantize<int8_t>(widen(out) * next_inverse);
    }
  });
}

template <typename T>
cudaError_t launch_quantized_feed_forward_plain(const QuantizedFeedForwardProblem& problem,
                                                const QuantizedFeedForwardArguments& arguments,
                                                cudaStream_t stream) {
  return launch_linear(
      quantized_feed_forward_plain_kernel<T>, problem.rows * kPlainFeedForwardThreads,
      kPlainFeedForwardThreads, stream, arguments, static_cast<int>(problem.channels),
      static_cast<int>(problem.hidden), 1 / problem.x_scale, 1 / problem.hidden_scale,
      1 / problem.next_scale, static_cast<float>(problem.eps));
}

}  // namespace msda
