// Vectors of consecutive elements, widened to the type of the sums when they are read.
#pragma once

#include "msda/packed.cuh"

namespace msda {

// The type of coordinates, weights and sums for values of type T.
template <typename T>
using Accumulate = std::conditional_t<std::is_same_v<T, double>, double, float>;

__device__ __forceinline__ float widen(float x) { return x; }
__device__ __forceinline__ int32_t widen(int8_t x) { return x; }
__device__ __forceinline__ double widen(double x) { return x; }
__device__ __forceinline__ float widen(__half x) { return __half2float(x); }
__device__ __forceinline__ float widen(__nv_bfloat16 x) { return __bfloat162float(x); }

template <typename T>
__device__ __forceinline__ T narrow(Accumulate<T> x) {
  if constexpr (std::is_same_v<T, __half>) {
    return __float2half_rn(x);
  } else if constexpr (std::is_same_v<T, __nv_bfloat16>) {
    return __float2bfloat16_rn(x);
  } else {
    return x;
  }
}

// kSize consecutive elements at an address that is a multiple of the vector's size.
template <typename T, int kSize>
struct alignas(sizeof(T) * kSize) Vector {
  // 16-bit elements stay the 32-bit words that they were loaded as. nvcc would take arrays of
  // halves apart, and put them together again around every condition.
  static constexpr bool kPacked = sizeof(T) == 2 && kSize % 2 == 0;
  using Word = std::conditional_t<kPacked, uint32_t, T>;
  Word word[kPacked ? kSize / 2 : kSize];

  __device__ __forceinline__ Accumulate<T> operator[](int i) const {
    if constexpr (kPacked) {
      const float2 pair = unpack(bits<Packed<T>>(word[i / 2]));
      return i % 2 ? pair.y : pair.x;
    } else {
      return widen(word[i]);
    }
  }
  __device__ __forceinline__ void set(int i, Accumulate<T> x) {
    reinterpret_cast<T*>(word)[i] = narrow<T>(x);
  }
};

// The word of kBytes that one load reads.
template <int kBytes>
using WordOf = std::conditional_t<
    kBytes == 16, uint4,
    std::conditional_t<kBytes == 8, uint2, std::conditional_t<kBytes == 4, uint32_t, uint16_t>>>;

// Loads up to 16 bytes.
template <typename T, int kSize>
__device__ __forceinline__ Vector<T, kSize> load(const T* address) {
  if constexpr (kSize == 1) {
    return {__ldg(address)};
  } else {
    using Word = WordOf<sizeof(Vector<T, kSize>)>;
    return bits<Vector<T, kSize>>(
        load_word<Cached::kNormal>(reinterpret_cast<const Word*>(address)));
  }
}

// kSize consecutive elements, each in a register of its own, loaded once. The sampling inputs of
// forward_lane.cuh: as the words of a Vector they make nvcc spill.
template <typename T, int kSize>
struct Scalars {
  T element[kSize];

  __device__ __forceinline__ void load_once(const T* address) {
    using Word = WordOf<sizeof(element)>;
    const Word word = load_word<Cached::kEvictFirst>(reinterpret_cast<const Word*>(address));
    memcpy(element, &word, sizeof(element));
  }
  __device__ __forceinline__ float operator[](int i) const { return widen(element[i]); }
};

// Zeros where the condition is false; the address is not read then.
template <typename T, int kSize>
__device__ __forceinline__ Vector<T, kSize> load_if(bool condition, const T* address) {
  Vector<T, kSize> vector{};
  if (condition) vector = load<T, kSize>(address);
  return vector;
}

template <typename T, int kSize>
__device__ __forceinline__ void store(T* address, const Accumulate<T> (&sums)[kSize]) {
  Vector<T, kSize> vector;
#pragma unroll
  for (int i = 0; i < kSize; ++i) vector.set(i, sums[i]);
  *reinterpret_cast<Vector<T, kSize>*>(address) = vector;
}

template <typename Real>
struct Pair {
  Real x;
  Real y;
};

// Reads and writes one element after the other of a tensor of scalars or (x, y) pairs. The tensor
// has the value's type, or, where `widened`, the type of the sums.
template <typename T, bool kConst = true>
class Cursor {
 public:
  using Real = Accumulate<T>;
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
