// Loads, stores and adds of a few consecutive channels at once, widened to the type of the sums.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>
#include <type_traits>

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

// kSize consecutive elements; the address must be a multiple of the whole vector's size. Read
// through operator[], which widens.
template <typename T, int kSize>
struct alignas(sizeof(T) * kSize) Vector {
  using Real = typename Accumulate<T>::type;
  T element[kSize];
  __device__ __forceinline__ Real operator[](int i) const { return widen(element[i]); }
  __device__ __forceinline__ void set(int i, Real x) { element[i] = narrow<T>(x); }
};

// Pairs of 16-bit elements stay the 32-bit words that they were loaded as: arrays of halves would
// be taken apart and put together again around every condition.
template <int kSize>
struct alignas(2 * kSize) Words {
  static_assert(kSize % 2 == 0);
  uint32_t word[kSize / 2];
};
template <int kSize>
struct Vector<__half, kSize> : Words<kSize> {
  __device__ __forceinline__ float operator[](int i) const {
    const __half2 pair = reinterpret_cast<const __half2&>(this->word[i / 2]);
    return i % 2 ? __high2float(pair) : __low2float(pair);
  }
  __device__ __forceinline__ void set(int i, float x) {
    reinterpret_cast<__half*>(this->word)[i] = __float2half_rn(x);
  }
};
template <int kSize>
struct Vector<__nv_bfloat16, kSize> : Words<kSize> {
  __device__ __forceinline__ float operator[](int i) const {
    return __uint_as_float(i % 2 ? this->word[i / 2] & 0xffff0000u : this->word[i / 2] << 16);
  }
  __device__ __forceinline__ void set(int i, float x) {
    reinterpret_cast<__nv_bfloat16*>(this->word)[i] = __float2bfloat16_rn(x);
  }
};
template <typename T>
struct Vector<T, 1> {
  using Real = typename Accumulate<T>::type;
  T element;
  __device__ __forceinline__ Real operator[](int) const { return widen(element); }
  __device__ __forceinline__ void set(int, Real x) { element = narrow<T>(x); }
};
template <>
struct Vector<__half, 1> {
  __half element;
  __device__ __forceinline__ float operator[](int) const { return widen(element); }
  __device__ __forceinline__ void set(int, float x) { element = narrow<__half>(x); }
};
template <>
struct Vector<__nv_bfloat16, 1> {
  __nv_bfloat16 element;
  __device__ __forceinline__ float operator[](int) const { return widen(element); }
  __device__ __forceinline__ void set(int, float x) { element = narrow<__nv_bfloat16>(x); }
};

// The read-only path: nothing that a kernel reads is written while it runs.
template <typename T, int kSize>
__device__ __forceinline__ Vector<T, kSize> load(const T* address) {
  Vector<T, kSize> vector;
  if constexpr (kSize == 1) {
    vector.element = __ldg(address);
  } else if constexpr (sizeof(vector) == 16) {
    reinterpret_cast<uint4&>(vector) = __ldg(reinterpret_cast<const uint4*>(address));
  } else if constexpr (sizeof(vector) == 8) {
    reinterpret_cast<uint2&>(vector) = __ldg(reinterpret_cast<const uint2*>(address));
  } else {
    static_assert(sizeof(vector) == 4);
    reinterpret_cast<uint32_t&>(vector) = __ldg(reinterpret_cast<const uint32_t*>(address));
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
  for (int i = 0; i < kSize; ++i) vector.set(i, sums[i]);
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

template <typename Real>
struct Pair {
  Real x;
  Real y;
};

// A tensor of scalars or (x, y) pairs that has either the value's type or the type of the sums,
// read (and written) one element after the other.
template <typename T, bool kConst = true>
class Cursor {
 public:
  using Real = typename Accumulate<T>::type;
  using Byte = std::conditional_t<kConst, const char, char>;
  using Address = std::conditional_t<kConst, const void*, void*>;

  __device__ __forceinline__ Cursor(Address tensor, int64_t index, bool widened)
      : widened_(widened), size_(widened ? sizeof(Real) : sizeof(T)) {
    address_ = static_cast<Byte*>(tensor) + index * size_;
  }
  __device__ __forceinline__ void advance(int count) { address_ += count * size_; }

  __device__ __forceinline__ Real scalar(int i = 0) const {
    return widened_ ? __ldg(reinterpret_cast<const Real*>(address_) + i)
                    : static_cast<Real>(widen(__ldg(reinterpret_cast<const T*>(address_) + i)));
  }
  // kAligned: the address is a multiple of the pair's size.
  template <bool kAligned>
  __device__ __forceinline__ Pair<Real> pair() const {
    if constexpr (!kAligned) {
      return {scalar(0), scalar(1)};
    } else if (widened_) {
      const Vector<Real, 2> pair = load<Real, 2>(reinterpret_cast<const Real*>(address_));
      return {pair[0], pair[1]};
    } else {
      const Vector<T, 2> pair = load<T, 2>(reinterpret_cast<const T*>(address_));
      return {pair[0], pair[1]};
    }
  }
  __device__ __forceinline__ void store(int i, Real x) const {
    if (widened_) {
      reinterpret_cast<Real*>(address_)[i] = x;
    } else {
      reinterpret_cast<T*>(address_)[i] = narrow<T>(x);
    }
  }

 private:
  Byte* address_;
  bool widened_;
  int size_;
};

}  // namespace msda
