// Sums that are equal to the last bit whatever their order: grad_value in fixed point.
//
// Problem   floating-point additions depend on their order, and that of atomics varies; additions
//           of integers do not. So a contribution x to an element of grad_value becomes the integer
//           nearest to x * 2^s, and 64-bit atomics add the integers up. Contributions that are not
//           finite go to grad_value itself by atomics of its own type: any order of adding
//           infinities and NaN gives the same. At the end one thread for each element adds both.
// Scale     of every (n,m), from the largest grad_output and the largest sum of weights of an
//           (n,q,m) in it: Q such contributions stay below 2^61, so nothing can overflow. Maxima do
//           not depend on the order either. The scale stays on the GPU; nobody waits for it.
// Precision one unit is at most 2^-58 of Q times what the scale was made from; at Q = 100,000 each
//           contribution is rounded by 2^-42 of that. Adding to a float sum is off by 2^-24 of the
//           sum: less only for contributions, and sums, below four millionths of the scale's, which
//           then are that much smaller than their head's others. double values have a second
//           integer for what the first leaves over.
// Cost      8 (double: 16) bytes of work memory for each element of grad_value, beside its own 4,
//           all of which is cleared before and read once after; atomics of 8 bytes where the float
//           path has those of 16; one more pass over grad_output and the weights.
#pragma once

#include "msda/backward_work.h"
#include "msda/launch_kernel.cuh"
#include "msda/sampling.h"
#include "msda/vector.cuh"

namespace msda {

inline constexpr int kFixedThreads = 256;

// So that 0, which the caller wrote, stands for a head without contributions.
inline constexpr int32_t kExponentBias = 1 << 16;

template <typename Real>
struct FixedLimits {  // of the scale's exponent: two factors, each of them a normal number
  static constexpr int kLeast = -126;
  static constexpr int kLargest = 2 * 127;
  static constexpr int kIntegers = 1;  // for one sum
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

// Of the sums of one (n,m).
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
    const long long whole = llrint(scaled);
    int64_t* const sum = sums + element * kIntegers;
    add(sum, whole);
    if constexpr (kIntegers == 2) {
      // Exact: what lies beyond the point of a number that is not an integer itself.
      add(sum + 1, llrint((scaled - static_cast<Real>(whole)) * rest_scale_));
    }
  }

  // The number that the sum of an element stands for, rounded once (double values: about once).
  __device__ __forceinline__ Real value(const int64_t* sums, int64_t element) const {
    const int64_t* const sum = sums + element * kIntegers;
    const Real whole = static_cast<Real>(sum[0]);
    if constexpr (kIntegers == 1) {
      return ldexp(whole, -exponent_);
    } else {
      const Real rounded_off = static_cast<Real>(sum[0] - static_cast<int64_t>(whole));
      const Real rest = static_cast<Real>(sum[1]) / rest_scale_;
      return ldexp(whole + (rounded_off + rest), -exponent_);
    }
  }

 private:
  static constexpr int kIntegers = FixedLimits<Real>::kIntegers;

  // Two's complement: the sum of unsigned numbers is that of signed ones.
  __device__ __forceinline__ static void add(int64_t* sum, long long x) {
    if (x == 0) return;
    atomicAdd(reinterpret_cast<unsigned long long*>(sum), static_cast<unsigned long long>(x));
  }

  Real scale_;
  Real other_scale_;
  Real rest_scale_ = 0;
  int exponent_;
};

// How large the contributions of a head are: a warp looks at one (n,q,m).
template <typename T>
__global__ void __launch_bounds__(kFixedThreads)
    exponents_kernel(const __grid_constant__ Problem problem,
                     const __grid_constant__ BackwardArguments arguments,
                     int32_t* const exponents) {
  const int64_t item =
      (static_cast<int64_t>(blockIdx.x) * kFixedThreads + static_cast<int>(threadIdx.x)) / 32;
  if (item >= problem.batch_size * problem.num_queries * problem.num_heads) return;  // a whole warp
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
#pragma unroll
  for (int distance = 16; distance > 0; distance /= 2) {
    largest = fmax(largest, __shfl_xor_sync(0xffffffffu, largest, distance));
    total += __shfl_xor_sync(0xffffffffu, total, distance);
  }
  if (problem.locations != Locations::kGiven) total = 1;
  if (lane != 0 || largest == 0 || total == 0) return;
  // Each factor is less than two to the power of its exponent plus one.
  const int32_t biased = kExponentBias + ilogb(largest) + ilogb(fmin(total, 1e308)) + 2;
  const int64_t head =
      item / problem.num_heads / problem.num_queries * problem.num_heads + item % problem.num_heads;
  // Most find one as large there already; what is read too early is only smaller.
  if (*static_cast<volatile int32_t*>(exponents + head) < biased) {
    atomicMax(exponents + head, biased);
  }
}

// grad_value from its sums, and from what was not finite.
template <typename T>
__global__ void __launch_bounds__(kFixedThreads)
    finish_kernel(const __grid_constant__ Problem problem,
                  const __grid_constant__ BackwardWork work,
                  typename Accumulate<T>::type* const grad_value) {
  using Real = typename Accumulate<T>::type;
  const int64_t element = static_cast<int64_t>(blockIdx.x) * kFixedThreads + threadIdx.x;
  const int64_t head_row = element / problem.head_dim;  // (n, cell, m)
  const int64_t row = head_row / problem.num_heads;
  if (row >= problem.batch_size * problem.num_cells) return;
  const int64_t head =
      row / problem.num_cells * problem.num_heads + (head_row - row * problem.num_heads);
  const FixedPoint<Real> fixed(work, __ldg(work.exponents + head));
  const Real other = grad_value[element];
  if (is_finite(other)) {
    grad_value[element] = other + fixed.value(work.sums, element);
  } else if (other != other) {
    grad_value[element] = Real(NAN);  // of the many NaN always the same
  }
}

template <typename T>
cudaError_t launch_exponents(const Problem& problem, const BackwardArguments& arguments,
                             const BackwardWork& work, cudaStream_t stream) {
  constexpr int kItems = kFixedThreads / 32;
  const int64_t items = problem.batch_size * problem.num_queries * problem.num_heads;
  const int64_t blocks = (items + kItems - 1) / kItems;
  if (blocks > INT32_MAX) return cudaErrorInvalidConfiguration;
  return launch(exponents_kernel<T>, blocks, kFixedThreads, stream, problem, arguments,
                work.exponents);
}

template <typename T>
cudaError_t launch_finish(const Problem& problem, const BackwardArguments& arguments,
                          const BackwardWork& work, cudaStream_t stream) {
  using Real = typename Accumulate<T>::type;
  const int64_t elements =
      problem.batch_size * problem.num_cells * problem.num_heads * problem.head_dim;
  const int64_t blocks = (elements + kFixedThreads - 1) / kFixedThreads;
  if (blocks == 0) return cudaSuccess;
  if (blocks > INT32_MAX) return cudaErrorInvalidConfiguration;
  return launch(finish_kernel<T>, blocks, kFixedThreads, stream, problem, work,
                static_cast<Real*>(arguments.grad_value));
}

}  // namespace msda
