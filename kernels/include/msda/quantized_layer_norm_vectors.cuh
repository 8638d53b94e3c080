// Layer normalisation with a result in 8 bits by a kernel that reads vectors of 16 bytes: "vectors"
// of quantized_layer_norm_choice.h.
//
// Problem   that of quantized_layer_norm_plain.cuh, for rows of whole vectors of half or bfloat16.
// Threads   kLanes lanes have a row, kVectors of its vectors each: 8 lanes have 3 each of 192
//           channels, 64 lanes 3 of 1536. A warp has several rows, or a row several warps, which
//           add up their sums in shared memory. Lanes hold the row in registers, so the sum of
//           squared differences from the mean takes no second read.
// Weights   A lane has the same columns of every row. It reads their weight and bias once.
// Overlap   A block goes from rows to rows, and loads the next ones before it computes.
// Launch    From compute capability 9.0 on, blocks begin before the last kernel has ended.
// Limits    can_run() in quantized_layer_norm_choice.h. Deterministic: a fixed order of sums.
#pragma once

#include <algorithm>

#include "msda/quantized_layer_norm_choice.h"
#include "msda/quantized_layer_norm_plain.cuh"

namespace msda {

inline constexpr int kLayerNormThreads = 128;

// Blocks that a multiprocessor holds at once: what their registers allow.
inline constexpr int layer_norm_blocks(int vectors) { return vectors == 3 ? 7 : 5; }

// The sum over the kLanes threads of a row. Consecutive calls alternate between two arrays
// `shared`: behind the barrier of a call, every thread has read the sums of the call before.
template <int kLanes>
__device__ __forceinline__ float sum_over_row(float x, float* shared) {
  if constexpr (kLanes <= 32) {
    return sum_over_group(x, kLanes);
  } else {
    constexpr int kWarps = kLanes / 32;
    x = sum_over_group(x, 32);
    const int warp = static_cast<int>(threadIdx.x) / 32;
    if (threadIdx.x % 32 == 0) shared[warp] = x;
    __syncthreads();
    x = 0;
#pragma unroll
    for (int i = 0; i < kWarps; ++i) x += shared[warp / kWarps * kWarps + i];
    return x;
  }
}

// The same vector. nvcc would widen weight and bias once for all rows, and spill the floats.
template <typename T>
__device__ __forceinline__ Vector<T, 8> packed(Vector<T, 8> vector) {
#pragma unroll
  for (uint32_t& word : vector.word) word = static_cast<uint32_t>(no_hoist(static_cast<int>(word)));
  return vector;
}

template <typename T, typename Q, int kLanes, int kVectors>
__global__ void __launch_bounds__(kLayerNormThreads, layer_norm_blocks(kVectors))
    quantized_layer_norm_vectors_kernel(
        const __grid_constant__ QuantizedLayerNormArguments arguments,
        const __grid_constant__ LayerNormNumbers numbers, int rows, int columns) {
  using Eight = Vector<T, 8>;
  constexpr int kRows = kLayerNormThreads / kLanes;  // of a block at once
  __shared__ float shared[2][kLayerNormThreads / 32];
  const int lane = static_cast<int>(threadIdx.x) % kLanes;
  // Whether the row has vector i of the lane.
  const auto has = [&](int i) { return lane + i * kLanes < columns; };
  const auto place = [&](int row, int i) {
    return static_cast<int64_t>(row) * columns + lane + i * kLanes;
  };
  // Loads a row of a tensor; zeros beyond its columns. The read-only path could run ahead of
  // wait_for_last_kernel().
  const auto load_row = [&](const void* tensor, int row, Eight(&vectors)[kVectors]) {
#pragma unroll
    for (int i = 0; i < kVectors; ++i) {
      const uint4* const words = static_cast<const uint4*>(tensor) + place(row, i);
      vectors[i] = bits<Eight>(has(i) ? *words : uint4{});
    }
  };

  begin_next_kernel();
  wait_for_last_kernel();
  int row = static_cast<int>(blockIdx.x) * kRows + static_cast<int>(threadIdx.x) / kLanes;
  const int step = static_cast<int>(gridDim.x) * kRows;
  Eight next[kVectors]{}, weight[kVectors], bias[kVectors];
  if (row < rows) load_row(arguments.x, row, next);
  load_row(arguments.weight, 0, weight);
  load_row(arguments.bias, 0, bias);
  // All threads of a block make the same number of steps.
  for (int first = static_cast<int>(blockIdx.x) * kRows; first < rows; first += step, row += step) {
    Eight x[kVectors];
    float sum = 0;
#pragma unroll
    for (int i = 0; i < kVectors; ++i) {
      x[i] = next[i];
#pragma unroll
      for (int j = 0; j < 8; ++j) sum += x[i][j];
    }
    if (row < rows - step) load_row(arguments.x, row + step, next);
    const float mean = sum_over_row<kLanes>(sum, shared[0]) / numbers.channels;
    float squares = 0;
#pragma unroll
    for (int i = 0; i < kVectors; ++i) {
      if (!has(i)) continue;
#pragma unroll
      for (int j = 0; j < 8; ++j) {
        const float difference = x[i][j] - mean;
        squares += difference * difference;
      }
    }
    const float factor = numbers.factor(sum_over_row<kLanes>(squares, shared[1]));
#pragma unroll
    for (int i = 0; i < kVectors; ++i) {
      if (row >= rows || !has(i)) continue;
      const Eight weights = packed(weight[i]), biases = packed(bias[i]);
      Vector<Q, 8> result;
#pragma unroll
      for (int j = 0; j < 8; ++j) {
        result.word[j] = numbers.result<Q>((x[i][j] - mean) * factor, weights[j], biases[j]);
      }
      static_cast<uint2*>(arguments.output)[place(row, i)] = bits<uint2>(result);
    }
  }
}

// Runs a problem that can_run().
template <typename T, typename Q>
cudaError_t launch_quantized_layer_norm_vectors(const QuantizedLayerNormProblem& problem,
                                                const QuantizedLayerNormArguments& arguments,
                                                cudaStream_t stream) {
  int multiprocessors = 0;
  const cudaError_t status = get_attribute(cudaDevAttrMultiProcessorCount, multiprocessors);
  if (status != cudaSuccess) return status;
  const int rows = static_cast<int>(problem.rows), columns = static_cast<int>(problem.channels / 8);
  int lanes = 4;
  while (4 * lanes < columns) lanes *= 2;
  return with_constant<4, 8, 16, 32, 64, 128>(lanes, [&](auto lanes_of_row) {
    constexpr int kLanes = decltype(lanes_of_row)::value, kRows = kLayerNormThreads / kLanes;
    return with_constant<3, 4>(columns <= 3 * kLanes ? 3 : 4, [&](auto vectors) {
      constexpr int kVectors = decltype(vectors)::value;
      const int blocks =
          std::min((rows + kRows - 1) / kRows, multiprocessors * layer_norm_blocks(kVectors));
      return launch_early(
          launch_config(dim3(static_cast<unsigned>(blocks)), kLayerNormThreads, stream),
          quantized_layer_norm_vectors_kernel<T, Q, kLanes, kVectors>, arguments,
          LayerNormNumbers(problem), rows, columns);
    });
  });
}

}  // namespace msda
