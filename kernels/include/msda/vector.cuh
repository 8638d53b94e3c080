// Loads, stores and adds of a few consecutive channels at once, widened to the type of the sums.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>

namespace msda {

// The type that coordinates, weights and sums have for values of type T.
template <typename T>
struct Accumulate {
  using type = float;
};
template <>
struct Accumulate<double> {
  using type = double;
};

__device__ __forceinline__ float widen(float x) { return x; }
__device__ __forceinline__ double widen(double x) { return x; }
__device__ __forceinline__ float widen(__half x) { return __half2float(x); }
__device__ __forceinline__ float widen(__nv_bfloat16 x) { return __bfloat162float(x); }

template <typename T>
__device__ __forceinline__ T narrow(typename Accumulate<T>::type x);
template <>
__device__ __forceinline__ float narrow<float>(float x) {
  return x;
}
template <>
__device__ __forceinline__ double narrow<double>(double x) {
  return x;
}
template <>
__device__ __forceinline__ __half narrow<__half>(float x) {
  return __float2half_rn(x);
}
template <>
__device__ __forceinline__ __nv_bfloat16 narrow<__nv_bfloat16>(float x) {
  return __float2bfloat16_rn(x);
}

// kSize consecutive elements; the address must be a multiple of the whole vector's size.
template <typename T, int kSize>
struct alignas(sizeof(T) * kSize) Vector {
  T element[kSize];
};

// The read-only path: nothing that a kernel reads is written while it runs.
template <typename T, int kSize>
__device__ __forceinline__ Vector<T, kSize> load(const T* address) {
  Vector<T, kSize> vector;
  if constexpr (sizeof(vector) == 16) {
    *reinterpret_cast<uint4*>(&vector) = __ldg(reinterpret_cast<const uint4*>(address));
  } else if constexpr (sizeof(vector) == 8 && kSize > 1) {
    *reinterpret_cast<uint2*>(&vector) = __ldg(reinterpret_cast<const uint2*>(address));
  } else if constexpr (sizeof(vector) == 4 && kSize > 1) {
    *reinterpret_cast<uint32_t*>(&vector) = __ldg(reinterpret_cast<const uint32_t*>(address));
  } else {
#pragma unroll
    for (int i = 0; i < kSize; ++i) vector.element[i] = __ldg(address + i);
  }
  return vector;
}

// Zeros where the condition is false, and then the address is not read.
template <typename T, int kSize>
__device__ __forceinline__ Vector<T, kSize> load_if(bool condition, const T* address) {
  Vector<T, kSize> vector{};
  if (condition) vector = load<T, kSize>(address);
  return vector;
}

template <typename T, int kSize>
__device__ __forceinline__ void store(T* address,
                                      const typename Accumulate<T>::type (&sums)[kSize]) {
  Vector<T, kSize> vector;
#pragma unroll
  for (int i = 0; i < kSize; ++i) vector.element[i] = narrow<T>(sums[i]);
  *reinterpret_cast<Vector<T, kSize>*>(address) = vector;
}

// Atomically adds kSize values to consecutive addresses, aligned to the vector; in fours where the
// GPU has vector atomics (compute capability 9.0).
template <typename Real, int kSize>
__device__ __forceinline__ void atomic_add(Real* address, const Real (&values)[kSize]) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  constexpr bool kVectorAtomics = sizeof(Real) == 4 && kSize % 4 == 0;
#else
  constexpr bool kVectorAtomics = false;
#endif
  if constexpr (kVectorAtomics) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
#pragma unroll
    for (int i = 0; i < kSize; i += 4) {
      atomicAdd(reinterpret_cast<float4*>(address + i),
                make_float4(values[i], values[i + 1], values[i + 2], values[i + 3]));
    }
#endif
  } else {
#pragma unroll
    for (int i = 0; i < kSize; ++i) atomicAdd(address + i, values[i]);
  }
}

// A scalar or an (x, y) pair of a tensor that has either the value's type or the type of the sums.
template <typename T, typename Real = typename Accumulate<T>::type>
__device__ __forceinline__ Real load_scalar(const void* tensor, int64_t index, bool widened) {
  return widened ? __ldg(static_cast<const Real*>(tensor) + index)
                 : static_cast<Real>(widen(__ldg(static_cast<const T*>(tensor) + index)));
}

template <typename Real>
struct Pair {
  Real x;
  Real y;
};

// kAligned: the tensor's address is a multiple of the pair's size.
template <typename T, bool kAligned, typename Real = typename Accumulate<T>::type>
__device__ __forceinline__ Pair<Real> load_pair(const void* tensor, int64_t index, bool widened) {
  if constexpr (!kAligned) {
    return {load_scalar<T>(tensor, 2 * index, widened),
            load_scalar<T>(tensor, 2 * index + 1, widened)};
  } else if (widened) {
    const Vector<Real, 2> pair = load<Real, 2>(static_cast<const Real*>(tensor) + 2 * index);
    return {pair.element[0], pair.element[1]};
  } else {
    const Vector<T, 2> pair = load<T, 2>(static_cast<const T*>(tensor) + 2 * index);
    return {widen(pair.element[0]), widen(pair.element[1])};
  }
}

}  // namespace msda
