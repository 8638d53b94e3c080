// The feed-forward block in 16 bits for few rows: "split" of feed_forward_choice.h, for compute
// capability 9.0.
//
// Problem   that of feed_forward_sm90.cuh, for up to kSplitMostRows rows: a decoder's queries
// Slices    A row of blocks multiplies 128 rows. Each block has a slice of the hidden layer, and
//           computes it and its part of the second product as feed_forward_sm90.cuh does.
// Sums      The first kernel writes the sums of each slice to the work memory [slices, M, C]. In
//           the second one a warp adds up those of a row, bias and x, and normalises.
// Launch    Blocks of the second kernel begin where those of the first have ended, and wait for the
//           others.
// Limits    those of check() and can_run(). Deterministic: a fixed order of sums.
#pragma once

#include "msda/feed_forward_sm90.cuh"

namespace msda {

inline constexpr int kSumsThreads = 128;  // four rows of a block
static_assert(kSplitRows == FeedForwardSizes::kGroups * FeedForwardSizes::kRows);

struct FeedForwardSums {
  const float* sums;
  const void* x;
  const void* bias2;
  const void* norm_weight;
  const void* norm_bias;
  void* output;
  int rows;
  int slices;
  float eps;
};

template <typename T>
__global__ void __launch_bounds__(kSumsThreads)
    feed_forward_sums_kernel(const __grid_constant__ FeedForwardSums all) {
  constexpr int kChannels = kHopperChannels, kVector = kChannels / 32;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int row =
      (static_cast<int>(blockIdx.x) * kSumsThreads + static_cast<int>(threadIdx.x)) / 32;
  begin_next_kernel();
  const auto parameter = [&](const void* tensor) {
    return load<T, kVector>(static_cast<const T*>(tensor) + lane * kVector);
  };
  const auto bias2 = parameter(all.bias2), norm_weight = parameter(all.norm_weight),
             norm_bias = parameter(all.norm_bias);

  wait_for_last_kernel();
  if (row >= all.rows) return;
  const int64_t place = int64_t{row} * kChannels + lane * kVector;
  float y[kVector] = {};
#pragma unroll 4
  for (int slice = 0; slice < all.slices; ++slice) {
    const auto* const from =
        reinterpret_cast<const float4*>(all.sums + int64_t{slice} * all.rows * kChannels + place);
    const float4 low = from[0], high = from[1];
    y[0] += low.x, y[1] += low.y, y[2] += low.z, y[3] += low.w;
    y[4] += high.x, y[5] += high.y, y[6] += high.z, y[7] += high.w;
  }
  const auto x = *reinterpret_cast<const Vector<T, kVector>*>(static_cast<const T*>(all.x) + place);
  float mean = 0, squares = 0;
#pragma unroll
  for (int i = 0; i < kVector; ++i) {
    y[i] += bias2[i] + x[i];
    mean += y[i];
  }
  mean = sum_over_group(mean, 32) / kChannels;
#pragma unroll
  for (int i = 0; i < kVector; ++i) squares += (y[i] - mean) * (y[i] - mean);
  const float factor = 1 / sqrtf(sum_over_group(squares, 32) / kChannels + all.eps);
  Vector<T, kVector> result;
#pragma unroll
  for (int i = 0; i < kVector; ++i) {
    result.set(i, fmaf((y[i] - mean) * factor, norm_weight[i], norm_bias[i]));
  }
  *reinterpret_cast<Vector<T, kVector>*>(static_cast<T*>(all.output) + place) = result;
}

template <typename T>
cudaError_t launch_feed_forward_split(const FeedForwardProblem& problem,
                                      const FeedForwardArguments& arguments, cudaStream_t stream) {
  using Sizes = FeedForwardSizes;
  const int64_t slices = feed_forward_slices(problem);
  const auto kernel = feed_forward_hopper_kernel<T, true>;
  cudaError_t status = with_feed_forward<T>(problem, arguments, slices, [&](const auto&... all) {
    const int64_t tiles = (problem.rows + kSplitRows - 1) / kSplitRows;
    const dim3 blocks(static_cast<unsigned>(tiles), static_cast<unsigned>(slices));
    cudaLaunchConfig_t config = launch_config(blocks, Sizes::kThreads, stream);
    const cudaError_t fits = use_shared_memory(config, kernel, Sizes::kSharedBytes);
    return fits == cudaSuccess ? launch_early(config, kernel, all...) : fits;
  });
  if (status != cudaSuccess) return status;
  const FeedForwardSums sums{static_cast<const float*>(arguments.work),
                             arguments.x,
                             arguments.bias2,
                             arguments.norm_weight,
                             arguments.norm_bias,
                             arguments.output,
                             static_cast<int>(problem.rows),
                             static_cast<int>(slices),
                             static_cast<float>(problem.eps)};
  const dim3 blocks(static_cast<unsigned>((problem.rows * 32 + kSumsThreads - 1) / kSumsThreads));
  return launch_early(launch_config(blocks, kSumsThreads, stream), feed_forward_sums_kernel<T>,
                      sums);
}

}  // namespace msda
