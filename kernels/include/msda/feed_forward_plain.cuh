// Feed-forward blocks: "plain" of feed_forward_choice.h, which runs any problem.
//
// Problem   hidden = relu(x weight1^T + bias1), rounded to x's type.
//           out = (y - mean) / sqrt(variance + eps) * norm_weight + norm_bias, where y = x + hidden
//           weight2^T + bias2, with mean and variance of each row of y (Layer Normalization,
//           arXiv:1607.06450, eq. 3 and 4).
// Layout    x [M,C], weight1 [H,C], bias1 [H], weight2 [C,H], bias2, norm_weight, norm_bias [C],
//           out [M,C]. Sums and what follows them are float.
// Threads   A block computes a row, and keeps x, hidden and y in shared memory. A thread computes a
//           hidden number at a time, then a number of y. Every warp adds up all of y.
// Limits    check() in feed_forward_params.h. Deterministic: a fixed order of sums.
#pragma once

#include "msda/cuda_launch.cuh"
#include "msda/feed_forward_params.h"
#include "msda/vector.cuh"

namespace msda {

inline constexpr int kPlainFeedForwardThreads = 256;

// The sum of a row's numbers of y, as f(y) makes them. The threads of a warp call it together.
template <typename F>
__device__ __forceinline__ float sum_of_row(const float* y, int channels, const F& f) {
  float sum = 0;
  for (int i = static_cast<int>(threadIdx.x) % 32; i < channels; i += 32) sum += f(y[i]);
  return sum_over_group(sum, 32);
}

// Normalises a row, and calls take(i, out) for the numbers of a thread. All threads of a block call
// it, after a barrier behind the writes of y. `Arguments` has norm_weight and norm_bias of type T.
template <typename T, typename Arguments, typename Take>
__device__ __forceinline__ void normalise_row(const float* y, const Arguments& arguments,
                                              int channels, float eps, const Take& take) {
  const float count = static_cast<float>(channels);
  const float mean = sum_of_row(y, channels, [](float number) { return number; }) / count;
  const float squares =
      sum_of_row(y, channels, [&](float number) { return (number - mean) * (number - mean); });
  const float factor = 1 / sqrtf(squares / count + eps);
  for (int i = static_cast<int>(threadIdx.x); i < channels; i += kPlainFeedForwardThreads) {
    const float weight = widen(static_cast<const T*>(arguments.norm_weight)[i]);
    const float bias = widen(static_cast<const T*>(arguments.norm_bias)[i]);
    take(i, narrow<T>(fmaf((y[i] - mean) * factor, weight, bias)));
  }
}

template <typename T>
__device__ __forceinline__ float dot(const T* one, const T* other, int count) {
  float sum = 0;
  for (int i = 0; i < count; ++i) sum = fmaf(widen(one[i]), widen(other[i]), sum);
  return sum;
}

template <typename T>
__global__ void __launch_bounds__(kPlainFeedForwardThreads)
    feed_forward_plain_kernel(const __grid_constant__ FeedForwardArguments arguments, int channels,
                              int hidden, float eps) {
  __shared__ T x[kFeedForwardMostChannels];
  __shared__ T hidden_row[kFeedForwardMostHidden];
  __shared__ float y[kFeedForwardMostChannels];
  const int thread = static_cast<int>(threadIdx.x);
  const int64_t first = static_cast<int64_t>(blockIdx.x) * channels;  // number of the row

  for (int i = thread; i < channels; i += kPlainFeedForwardThreads) {
    x[i] = static_cast<const T*>(arguments.x)[first + i];
  }
  __syncthreads();
  for (int i = thread; i < hidden; i += kPlainFeedForwardThreads) {
    const T* const weight = static_cast<const T*>(arguments.weight1) + i * channels;
    const float number =
        dot(x, weight, channels) + widen(static_cast<const T*>(arguments.bias1)[i]);
    hidden_row[i] = narrow<T>(number < 0 ? 0 : number);  // NaN stays
  }
  __syncthreads();
  for (int i = thread; i < channels; i += kPlainFeedForwardThreads) {
    const T* const weight = static_cast<const T*>(arguments.weight2) + i * hidden;
    const float bias = widen(static_cast<const T*>(arguments.bias2)[i]);
    y[i] = widen(x[i]) + (dot(hidden_row, weight, hidden) + bias);
  }
  __syncthreads();
  normalise_row<T>(y, arguments, channels, eps,
                   [&](int i, T out) { static_cast<T*>(arguments.output)[first + i] = out; });
}

template <typename T>
cudaError_t launch_feed_forward_plain(const FeedForwardProblem& problem,
                                      const FeedForwardArguments& arguments, cudaStream_t stream) {
  return launch_linear(feed_forward_plain_kernel<T>, problem.rows * kPlainFeedForwardThreads,
                       kPlainFeedForwardThreads, stream, arguments,
                       static_cast<int>(problem.channels), static_cast<int>(problem.hidden),
                       static_cast<float>(problem.eps));
}

}  // namespace msda
