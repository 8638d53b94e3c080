// The largest outputs of linear layers with a 16-bit x and float weights, on tensor cores:
// "tensor_core" of linear_max_choice.h.
//
// Problem   that of linear_max_plain.cuh, for K of 64, 192 or 256, and up to 80 outputs.
// Accuracy  Tensor cores multiply 16-bit numbers exactly and add in float. A weight is the sum of
//           16-bit parts, two halves or three bfloat16, with the error of a float. A power of two
//           for each output brings its largest weight to 2^13 first, because small halves have
//           fewer digits.
// Threads   A block of 8 warps stays on a multiprocessor, with the parts of all weights in shared
//           memory. A warp takes 32 rows at a time. Tiles go around blocks first, then warps.
// Fragments A sum may have any order of its terms. So lane 4 g + t takes 16 bytes of x and of
//           weight, columns 8 t to 8 t + 7 of 32, for two products of 16 columns. It needs no
//           shuffle and no matrix load.
// Overlap   A lane loads x kAhead steps of 32 columns ahead, also into its next tile.
// Limits    those of check() in linear_max_params.h; compute capability 8.0. Deterministic: a fixed
//           order of sums. Rows with numbers that are not finite give infinity or NaN.
#pragma once

#include "msda/linear_max_choice.h"
#include "msda/linear_max_plain.cuh"
#include "msda/tensor_core.cuh"

namespace msda {

template <typename T, int kK, int kMostOutputs>
struct LinearMaxConfig {
  using Value = T;
  static constexpr int kInputs = kK;
  static constexpr int kThreads = 256;
  static constexpr int kWarps = kThreads / 32;
  static constexpr int kRows = 32;                                      // of a tile
  static constexpr int kColumns = kMostOutputs / 8;                     // of 8 outputs each
  static constexpr int kSteps = kInputs / 32;                           // through K
  static constexpr int kAhead = kSteps == 8 ? 3 : kSteps == 6 ? 2 : 1;  // steps
  static constexpr int kParts = std::is_same_v<T, __half> ? 2 : 3;
  // 64 bytes more than a row has: two rows of weights then lie in different banks.
  static constexpr int kRowBytes = 2 * kInputs + 64;
  static constexpr int kPartBytes = kMostOutputs * kRowBytes;
  static constexpr int kSharedBytes = kParts * kPartBytes + 2 * kMostOutputs * 4;
  static_assert(kSteps % (kAhead + 1) == 0);
};

// Writes the parts of all weights to shared memory, and behind them for each output the scale that
// takes the power of two back, and the bias. Outputs that do not exist have -infinity.
template <typename Config>
__device__ __forceinline__ void split_weights(const LinearMaxArguments& arguments, int outputs,
                                              char* shared) {
  using T = typename Config::Value;
  constexpr int kInputs = Config::kInputs, kOfLane = kInputs / 32;
  constexpr int kOutputs = Config::kColumns * 8;
  float* const scales = reinterpret_cast<float*>(shared + Config::kParts * Config::kPartBytes);
  const int lane = static_cast<int>(threadIdx.x) % 32;
  for (int output = static_cast<int>(threadIdx.x) / 32; output < kOutputs;
       output += Config::kWarps) {
    const bool exists = output < outputs;
    const float* const row =
        static_cast<const float*>(arguments.weight) + static_cast<int64_t>(output) * kInputs;
    float weights[kOfLane], largest = 0;
#pragma unroll
    for (int i = 0; i < kOfLane; ++i) {
      weights[i] = exists ? __ldg(row + i * 32 + lane) : 0;
      largest = max(largest, fabsf(weights[i]));
    }
    // 2^13 over the power of two of the largest weight, and its inverse; both are normal floats.
    const int exponent =
        min(max(static_cast<int>(bits<uint32_t>(max_over_group(largest, 32)) >> 23), 14), 254);
    const float scale = bits<float>(static_cast<uint32_t>(127 + 13 + 127 - exponent) << 23);
#pragma unroll
    for (int i = 0; i < kOfLane; ++i) {
      float rest = weights[i] * scale;
#pragma unroll
      for (int part = 0; part < Config::kParts; ++part) {
        const T rounded = narrow<T>(rest);
        char* const place = shared + part * Config::kPartBytes + output * Config::kRowBytes;
        reinterpret_cast<T*>(place)[i * 32 + lane] = rounded;
        rest -= widen(rounded);
      }
    }
    if (lane == 0) {
      scales[output] = bits<float>(static_cast<uint32_t>(exponent - 13) << 23);
      scales[kOutputs + output] =
          exists ? static_cast<const float*>(arguments.bias)[output] : -INFINITY;
    }
  }
}

template <typename Config>
__global__ void __launch_bounds__(Config::kThreads, 1)
    linear_max_tensor_core_kernel(const __grid_constant__ LinearMaxArguments arguments, int rows,
                                  int outputs) {
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 800
  using T = typename Config::Value;
  constexpr int kColumns = Config::kColumns, kAhead = Config::kAhead;
  char* const shared = dynamic_shared();
  const int lane = static_cast<int>(threadIdx.x) % 32, g = lane / 4, t = lane % 4;
  const int blocks = static_cast<int>(gridDim.x), stride = blocks * Config::kWarps;
  const int tiles = (rows + Config::kRows - 1) / Config::kRows;
  const int first = static_cast<int>(threadIdx.x) / 32 * blocks + static_cast<int>(blockIdx.x);

  // Rows g, g + 8, g + 16 and g + 24 of a tile: 16 bytes of each. Rows beyond the last are the
  // last.
  uint4 x[kAhead + 1][4];
  const auto load_step = [&](uint4(&words)[4], int tile, int step) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int64_t row = min(static_cast<int64_t>(tile) * Config::kRows + g + 8 * i,
                              static_cast<int64_t>(rows - 1));
      const T* const place =
          static_cast<const T*>(arguments.x) + row * Config::kInputs + step * 32 + t * 8;
      words[i] = load_word<Cached::kEvictFirst>(reinterpret_cast<const uint4*>(place));
    }
  };
#pragma unroll
  for (int step = 0; step < kAhead; ++step) load_step(x[step], first, step);
  split_weights<Config>(arguments, outputs, shared);
  __syncthreads();

  const char* const lane_weights = shared + g * Config::kRowBytes + t * 16;
  const float* const scales =
      reinterpret_cast<const float*>(shared + Config::kParts * Config::kPartBytes);
  for (int tile = first; tile < tiles; tile += stride) {
    float sums[2][kColumns][4] = {};
#pragma unroll
    for (int step = 0; step < Config::kSteps; ++step) {
      const int later = step + kAhead;
      load_step(x[later % (kAhead + 1)], later < Config::kSteps ? tile : tile + stride,
                later % Config::kSteps);
      const uint4(&words)[4] = x[step % (kAhead + 1)];
      // Two products of 16 rows and 16 columns each.
      const uint32_t low[2][2][4] = {{{words[0].x, words[1].x, words[0].y, words[1].y},
                                      {words[2].x, words[3].x, words[2].y, words[3].y}},
                                     {{words[0].z, words[1].z, words[0].w, words[1].w},
                                      {words[2].z, words[3].z, words[2].w, words[3].w}}};
#pragma unroll
      for (int column = 0; column < kColumns; ++column) {
#pragma unroll
        for (int part = Config::kParts - 1; part >= 0; --part) {
          const char* const place =
              lane_weights + part * Config::kPartBytes + column * 8 * Config::kRowBytes + step * 64;
          const uint4 weight = *reinterpret_cast<const uint4*>(place);
#pragma unroll
          for (int half = 0; half < 2; ++half) {
            multiply_accumulate<T>(sums[half][column], low[0][half], weight.x, weight.y);
            multiply_accumulate<T>(sums[half][column], low[1][half], weight.z, weight.w);
          }
        }
      }
    }

    // A lane has outputs 2t and 2t + 1 of every column, of rows g and g + 8 of each half.
    float best[4] = {-INFINITY, -INFINITY, -INFINITY, -INFINITY};
#pragma unroll
    for (int column = 0; column < kColumns; ++column) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const int output = column * 8 + 2 * t + i;
        const float scale = scales[output], bias = scales[kColumns * 8 + output];
#pragma unroll
        for (int row = 0; row < 4; ++row) {
          const float sum = sums[row / 2][column][row % 2 * 2 + i];
          best[row] = larger(best[row], sum * scale + bias);
        }
      }
    }
#pragma unroll
    for (int row = 0; row < 4; ++row) {
      best[row] = larger(best[row], __shfl_xor_sync(kFullMask, best[row], 1));
      best[row] = larger(best[row], __shfl_xor_sync(kFullMask, best[row], 2));
      const int64_t place = static_cast<int64_t>(tile) * Config::kRows + g + 8 * row;
      if (t == 0 && place < rows) static_cast<float*>(arguments.output)[place] = best[row];
    }
  }
#endif
}

template <typename Config>
cudaError_t launch_linear_max_tensor_core(const LinearMaxProblem& problem,
                                          const LinearMaxArguments& arguments,
                                          cudaStream_t stream) {
  int multiprocessors = 0, shared_limit = 0, major = 0;
  cudaError_t status = get_attribute(cudaDevAttrMultiProcessorCount, multiprocessors);
  if (status == cudaSuccess) {
    status = get_attribute(cudaDevAttrMaxSharedMemoryPerBlockOptin, shared_limit);
  }
  if (status == cudaSuccess) status = get_attribute(cudaDevAttrComputeCapabilityMajor, major);
  if (status != cudaSuccess) return status;
  if (major < 8 || shared_limit < Config::kSharedBytes) return cudaErrorNotSupported;
  if (problem.empty()) return cudaSuccess;
  const auto kernel = linear_max_tensor_core_kernel<Config>;
  const int64_t tiles = (problem.rows + Config::kRows - 1) / Config::kRows;
  const int64_t blocks = std::min<int64_t>(multiprocessors, tiles);
  cudaLaunchConfig_t config =
      launch_config(dim3(static_cast<unsigned>(blocks)), Config::kThreads, stream);
  status = use_shared_memory(config, kernel, Config::kSharedBytes);
  if (status != cudaSuccess) return status;
  return cudaLaunchKernelEx(&config, kernel, arguments, static_cast<int>(problem.rows),
                            static_cast<int>(problem.outputs));
}

// Runs a problem that can_run(). cudaErrorNotSupported: this GPU cannot.
template <typename T>
cudaError_t run_linear_max_tensor_core(const LinearMaxProblem& problem,
                                       const LinearMaxArguments& arguments, cudaStream_t stream) {
  return with_constant<64, 192, 256>(problem.inputs, [&](auto inputs) {
    using Few = LinearMaxConfig<T, decltype(inputs)::value, 32>;
    using Many = LinearMaxConfig<T, decltype(inputs)::value, kLinearMaxOutputs>;
    return problem.outputs <= 32 ? launch_linear_max_tensor_core<Few>(problem, arguments, stream)
                                 : launch_linear_max_tensor_core<Many>(problem, arguments, stream);
  });
}

}  // namespace msda
