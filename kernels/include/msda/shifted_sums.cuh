// Mean and variance by sums about a number close to the mean, the shift: one pass, no division for
// each number, and sums of parts that simply add up. The shift is one of the numbers or a mean of
// some, so that the variance is at least its squared distance from the mean divided by the count:
// the difference of the two sums does not cancel, as that of E[x^2] and E[x]^2 does.
#pragma once

#include "msda/device.cuh"

namespace msda {

template <typename Real>
struct ShiftedSums {
  Real sum = 0;
  Real squares = 0;

  // Adds a number less the shift.
  __device__ __forceinline__ void add(Real difference) {
    sum += difference;
    squares += difference * difference;
  }
  __device__ __forceinline__ void add(const ShiftedSums& other) {
    sum += other.sum;
    squares += other.squares;
  }
};

template <typename Real>
struct Moments {
  Real mean;
  Real squares;  // sum of squared differences from the mean

  __device__ __forceinline__ Moments(Real shift, const ShiftedSums<Real>& sums, Real count) {
    const Real difference = sums.sum / count;
    mean = shift + difference;
    squares = sums.squares - difference * sums.sum;
    if (squares < 0) squares = 0;  // rounding; NaN remains, which max() would hide
  }
};

// Adds shared[part * groups + group] over the parts, in a fixed order. The block's threads then
// read the sums of a group in shared[group]. They call it together, when each has written its own;
// the block has at least half as many threads as there are sums.
template <typename Real>
__device__ __forceinline__ void add_parts(ShiftedSums<Real>* shared, int parts, int groups) {
  const int thread = static_cast<int>(threadIdx.x);
  __syncthreads();
  while (parts > 1) {
    const int half = (parts + 1) / 2;
    if (thread < (parts - half) * groups) shared[thread].add(shared[thread + half * groups]);
    __syncthreads();
    parts = half;
  }
}

}  // namespace msda
