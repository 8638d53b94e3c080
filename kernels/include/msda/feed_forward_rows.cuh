// What the kernels of feed-forward blocks for compute capability 9.0 share: the rows of a warp
// group, and their normalisation.
#pragma once

#include "msda/hopper.cuh"

namespace msda {

// Blocks are persistent, with two warp groups that multiply. In each round a warp group gets 64
// rows. In the last round the first warp groups of all blocks get rows before the second ones do:
// alone on its multiprocessor, a warp group is faster.
struct FeedForwardRounds {
  static constexpr int kRows = 64;  // of a warp group
  static constexpr int kGroups = 2;

  int all_rows;

  // The first row of a warp group in a round.
  __device__ int first_row(int round, int group) const {
    return ((round * kGroups + group) * static_cast<int>(gridDim.x) +
            static_cast<int>(blockIdx.x)) *
           kRows;
  }
  // The number of rounds in which a warp group has rows. For the second one it may be one less.
  __device__ int rounds(int group) const {
    const int left = all_rows - first_row(0, group),
              step = kGroups * static_cast<int>(gridDim.x) * kRows;
    return left > 0 ? (left + step - 1) / step : 0;
  }
};

// Normalises rows, two for each quad of lanes, and calls store(j, half, word) with each pair of
// results. Lane 4 g + t holds columns 8 j + 2 t and + 1 of row 8 half + g in
// numbers[4 j + 2 half] and behind it.
//
// pairs  [C, 2] in shared memory: weight and bias of the normalisation
template <typename T, int kNumbers, typename Store>
__device__ __forceinline__ void normalise_rows(const float (&numbers)[kNumbers], const float* pairs,
                                               float eps, int t, const Store& store) {
  constexpr int kChannels = 2 * kNumbers;
  float means[2] = {}, factors[2] = {};
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    for (int j = 0; j < kChannels / 8; ++j) {
      means[half] += numbers[4 * j + 2 * half] + numbers[4 * j + 2 * half + 1];
    }
    means[half] = sum_over_group(means[half], 4) / kChannels;
    for (int j = 0; j < kChannels / 8; ++j) {
      for (int i = 0; i < 2; ++i) {
        const float difference = numbers[4 * j + 2 * half + i] - means[half];
        factors[half] = fmaf(difference, difference, factors[half]);
      }
    }
    factors[half] = 1 / sqrtf(sum_over_group(factors[half], 4) / kChannels + eps);
    means[half] *= -factors[half];
  }
#pragma unroll
  for (int j = 0; j < kChannels / 8; ++j) {
    const float4 two = *reinterpret_cast<const float4*>(pairs + 2 * (8 * j + 2 * t));
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const auto normalised = [&](int i) {
        return fmaf(numbers[4 * j + 2 * half + i], factors[half], means[half]);
      };
      store(j, half, pack<T>(fmaf(normalised(0), two.x, two.y), fmaf(normalised(1), two.z, two.w)));
    }
  }
}

}  // namespace msda
