// The deterministic grad_value: sums in fixed point, which are equal to the last bit in any order.
//
// Problem   Floating-point sums depend on the order of the additions, and the order of atomics
//           varies. Integer sums do not. A contribution x to an element of grad_value becomes the
//           integer nearest to x * 2^s, and 64-bit atomics add the integers up. A contribution that
//           is not finite goes to grad_value itself: infinities and NaN add up to the same in any
//           order. At the end one thread for each element adds both.
// Scale     2^s of every (n,m) follows from the largest grad_output and the largest sum of weights
//           of its (n,q,m). Q such contributions stay below 2^61, so the sums cannot overflow. The
//           scale is a maximum, which does not depend on the order, and stays on the GPU.
// Precision One unit is at most 2^-58 of Q times the largest contribution. With Q = 100,000 each
//           contribution is rounded by 2^-42 of the largest. A float sum is rounded by 2^-24 of
//           itself, which is finer only for sums below four millionths of the largest contribution.
//           double values have a second integer for the remainder of the first.
// Cost      8 (double: 16) bytes of work memory for each element of grad_value, cleared before and
//           read once after; atomics of 8 bytes instead of 16; one more pass over grad_output and
//           the weights. One encoder layer at 768x1152: 5.39 ms instead of 1.75 ms (fp32; H200).
// Registers sm_90: 28 to 34, no spills;
//           256 threads a block.
#pragma once

#include "msda/backward_work.h"
#include "msda/bilinear.h"
#include "msda/cuda_launch.cuh"
#include "msda/vector.cuh"

namespace msda {

inline constexpr int kFixedThreads = 256;

// Exponents are biased, so that 0, the caller's zeros, means a head without contributions.
inline constexpr int32_t kExponentBias = 1 << 16;

template <typename Real>
struct FixedLimits {
  // Exponents of the scale, which is the product of two normal numbers.
  static constexpr int kLeast = -126;
  static constexpr int kLargest = 2 * 127;
  static constexpr int kIntegers = 1;  // of a sum
};
template <>
struct FixedLimits<double> {
  static constexpr int kLeast = -1022;
  static constexpr int kLargest = 2 * 1023;
  static constexpr int kIntegers = 2;
};

template <typename Real>
MSDA_HOST_DEVICE bool is_finite(Real x) {
  return x - x == Real(0);
}

// The fixed-point sums of one (n,m).
template <typename Real>
class FixedPoint {
 public:
  __device__ __forceinline__ FixedPoint(const BackwardWork& work, int32_t biased_exponent) {
    const int wanted = 61 - (biased_exponent - kExponentBias) - work.query_bits;
    exponent_ = wanted < FixedLimits<Real>::kLeast
                    ? FixedLimits<Real>::kLeast
                    : (wanted > FixedLimits<Real>::kLargest ? FixedLimits<Real>::kLargest : wanted);
    scale_ = ldexp(Real(1), exponent_ / 2);
    other_scale_ = ldexp(Real(1), exponent_ - exponent_ / 2);
    if constexpr (kIntegers == 2) {
      rest_scale_ = ldexp(Real(1), 61 - work.query_bits - work.point_bits);
    }
  }

  // Adds x to an element: to its sum, or to grad_value where x is not finite.
  __device__ __forceinline__ void add(int64_t* sums, Real* grad_value, int64_t element,
                                      Real x) const {
    if (!is_finite(x)) {
      atomicAdd(grad_value + element, x);
      return;
    }
    const Real scaled = x * scale_ * other_scale_;
    const long long integer = llrint(scaled);
    int64_t* const sum = sums + element * kIntegers;
    add(sum, integer);
    if constexpr (kIntegers == 2) {
      // The difference is exact.
      add(sum + 1, llrint((scaled - static_cast<Real>(integer)) * rest_scale_));
    }
  }

  // The sum of an element as a number, rounded once (double values: about once).
  __device__ __forceinline__ Real value(const int64_t* sums, int64_t element) const {
    const int64_t* const sum = sums + element * kIntegers;
    const Real integer = static_cast<Real>(sum[0]);
    if constexpr (kIntegers == 1) {
      return ldexp(integer, -exponent_);
    } else {
      const Real rounded_off = static_cast<Real>(sum[0] - static_cast<int64_t>(integer));
      const Real rest = static_cast<Real>(sum[1]) / rest_scale_;
      return ldexp(integer + (rounded_off + rest), -exponent_);
    }
  }

 private:
  static constexpr int kIntegers = FixedLimits<Real>::kIntegers;

  // In two's complement the sums of unsigned and of signed numbers are the same.
  __device__ __forceinline__ static void add(int64_t* sum, long long x) {
    if (x == 0) return;
    atomicAdd(reinterpret_cast<unsigned long long*>(sum), static_cast<unsigned long long>(x));
  }

  Real scale_;
  Real other_scale_;
  Real rest_scale_ = 0;
  int exponent_;
};

// Finds the exponents of the heads' contributions: one warp for each (n,q,m).
template <typename T>
__global__ void __launch_bounds__(kFixedThreads)
    exponents_kernel(const __grid_constant__ Problem problem,
                     const __grid_constant__ BackwardArguments arguments,
                     int32_t* const exponents) {
  const int64_t item =
      (static_cast<int64_t>(blockIdx.x) * kFixedThreads + static_cast<int>(threadIdx.x)) / 32;
  if (item >= problem.batch_size * problem.num_queries * problem.num_heads) return;
  const int lane = threadIdx.x % 32;

  // In double, so that sums of float weights stay finite.
  double largest = 0;
  const T* const grad = static_cast<const T*>(arguments.grad_output) + item * problem.head_dim;
  for (int64_t channel = lane; channel < problem.head_dim; channel += 32) {
    const double size = fabs(static_cast<double>(widen(__ldg(grad + channel))));
    if (is_finite(size)) largest = fmax(largest, size);
  }
  double total = 0;  // of the weights; those of a softmax have the sum 1
  if (problem.locations == Locations::kGiven) {
    Cursor<T> weights(arguments.forward.attention_weights, item * problem.total_points + lane,
                      problem.weight_type != problem.value_type);
    for (int64_t point = lane; point < problem.total_points; point += 32, weights.advance(32)) {
      const double size = fabs(static_cast<double>(weights.scalar()));
      if (is_finite(size)) total += size;
    }
  }
  largest = max_over_group(largest, 32);
  total = sum_over_group(total, 32);
  if (problem.locations != Locations::kGiven) total = 1;
  if (lane != 0 || largest == 0 || total == 0) return;
  // Each factor is less than 2^(exponent + 1).
  const int32_t biased = kExponentBias + ilogb(largest) + ilogb(fmin(total, 1e308)) + 2;
  const int64_t head =
      item / problem.num_heads / problem.num_queries * problem.num_heads + item % problem.num_heads;
  // Most warps find an exponent as large and skip the atomic. An outdated one is only smaller.
  if (*static_cast<volatile int32_t*>(exponents + head) < biased) {
    atomicMax(exponents + head, biased);
  }
}

// Makes grad_value from the sums and the contributions that are not finite.
template <typename T>
__global__ void __launch_bounds__(kFixedThreads)
    finish_kernel(const __grid_constant__ Problem problem,
                  const __grid_constant__ BackwardWork work, Accumulate<T>* const grad_value) {
  using Real = Accumulate<T>;
  const int64_t element = static_cast<int64_t>(blockIdx.x) * kFixedThreads + threadIdx.x;
  const int64_t cell_head = element / problem.head_dim;  // (n, cell, m)
  const int64_t cell = cell_head / problem.num_heads;    // (n, cell)
  if (cell >= problem.batch_size * problem.num_cells) return;
  const int64_t head =
      cell / problem.num_cells * problem.num_heads + (cell_head - cell * problem.num_heads);
  const FixedPoint<Real> fixed(work, __ldg(work.exponents + head));
  const Real other = grad_value[element];
  if (is_finite(other)) {
    grad_value[element] = other + fixed.value(work.sums, element);
  } else if (other != other) {
    grad_value[element] = Real(NAN);  // the same bits in every run
  }
}

template <typename T>
cudaError_t launch_exponents(const Problem& problem, const BackwardArguments& arguments,
                             const BackwardWork& work, cudaStream_t stream) {
  const int64_t items = problem.batch_size * problem.num_queries * problem.num_heads;
  return launch_linear(exponents_kernel<T>, items * 32, kFixedThreads, stream, problem, arguments,
                       work.exponents);
}

template <typename T>
cudaError_t launch_finish(const Problem& problem, const BackwardArguments& arguments,
                          const BackwardWork& work, cudaStream_t stream) {
  using Real = Accumulate<T>;
  const int64_t elements =
      problem.batch_size * problem.num_cells * problem.num_heads * problem.head_dim;
  return launch_linear(finish_kernel<T>, elements, kFixedThreads, stream, problem, work,
                       static_cast<Real*>(arguments.grad_value));
}

}  // namespace msda
