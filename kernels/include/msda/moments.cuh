// Count, mean and sum of squared differences to the mean, and how those of two sets of numbers
// become those of both (Chan, Golub and LeVeque, 1979). The sum has no cancellation, as the
// difference of E[x^2] and E[x]^2 has, and cannot be negative.
#pragma once

#include "msda/device.cuh"

namespace msda {

template <typename Real>
struct Moments {
  Real count = 0;
  Real mean = 0;
  Real squares = 0;

  __device__ __forceinline__ void merge(const Moments& other) {
    const Real total = count + other.count;
    const Real share = total > 0 ? other.count / total : 0;
    const Real difference = other.mean - mean;
    squares += other.squares + difference * difference * (count * share);
    mean += difference * share;
    count = total;
  }
};

// Merges shared[part * groups + group] over the parts, in a fixed order. The block's threads then
// read the moments of a group in shared[group]. They call it together, when each has written its
// own; the block has at least half as many threads as there are moments.
template <typename Real>
__device__ __forceinline__ void merge_parts(Moments<Real>* shared, int parts, int groups) {
  const int thread = static_cast<int>(threadIdx.x);
  __syncthreads();
  while (parts > 1) {
    const int half = (parts + 1) / 2;
    if (thread < (parts - half) * groups) shared[thread].merge(shared[thread + half * groups]);
    __syncthreads();
    parts = half;
  }
}

}  // namespace msda
