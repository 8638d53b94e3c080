// The softmax of the fused kernels. A group of lanes, a power of two of neighbours, makes the
// softmax of one (n,q,m) over the points of all levels.
//
//   RelativeWeights   forward_group.cuh: each lane keeps its points' logits in registers
//   Softmax           the backward kernels: logits are read again where they are wanted
//
// forward_general.cuh has one thread for an (n,q,m), so its softmax is two loops of that kernel.
#pragma once

#include "msda/device.cuh"
#include "msda/vector.cuh"

namespace msda {

// Weights of one (n,q,m) relative to the largest, so that 16-bit arithmetic cannot overflow: the
// softmax's exponentials, or, kFused being false, the given weights divided by the largest
// magnitude. Every lane calls observe() with its weights, then reduce(), then operator().
template <bool kFused, int kLanes>
struct RelativeWeights {
  float largest = kFused ? -INFINITY : 0.0f;
  float factor = 1.0f;  // fused: the largest times log2(e); else what weights are multiplied by

  __device__ __forceinline__ void observe(float weight) {
    largest = fmaxf(largest, kFused ? weight : fabsf(weight));
  }
  __device__ __forceinline__ void reduce() {
    largest = max_over_group(largest, kLanes);
    if constexpr (kFused) {
      factor = largest * kLog2E;
    } else {
      // The reciprocal is neither infinite nor zero.
      const bool invertible = largest > 1e-37f && largest < 1e37f;
      largest = invertible ? largest : 1.0f;
      factor = 1.0f / largest;
    }
  }
  __device__ __forceinline__ float operator()(float weight) const {
    if constexpr (kFused) {
      return exp2_approx(fmaf(weight, kLog2E, -factor));
    } else {
      return weight * factor;
    }
  }
};

// exp(logit - largest) * scale.
template <typename Real>
struct Softmax {
  Real largest = 0;
  Real scale = 1;
  __device__ __forceinline__ Real operator()(Real logit) const {
    return exp(logit - largest) * scale;
  }
};

// Reads an item's logits twice; each lane of the group takes every group_size-th.
template <typename T, typename Real = Accumulate<T>>
__device__ __forceinline__ Softmax<Real> make_softmax(const Cursor<T>& first_logit,
                                                      int64_t num_points, int lane,
                                                      int group_size) {
  const auto for_each_logit = [&](const auto& visit) {
    Cursor<T> logits = first_logit;
    logits.advance(lane);
    for (int64_t point = lane; point < num_points; point += group_size) {
      visit(logits.scalar());
      logits.advance(group_size);
    }
  };
  Softmax<Real> softmax;
  softmax.largest = -INFINITY;
  for_each_logit([&](Real logit) { softmax.largest = max(softmax.largest, logit); });
  softmax.largest = max_over_group(softmax.largest, group_size);
  Real total = 0;
  for_each_logit([&](Real logit) { total += softmax(logit); });
  softmax.scale = Real(1) / sum_over_group(total, group_size);
  return softmax;
}

}  // namespace msda
