// Arithmetic on two 16-bit numbers in a 32-bit word.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>
#include <cstring>
#include <type_traits>

namespace msda {

// The CUDA type of a pair of T.
template <typename T>
struct PackedType;
template <>
struct PackedType<__half> {
  using type = __half2;
};
template <>
struct PackedType<__nv_bfloat16> {
  using type = __nv_bfloat162;
};

template <typename T>
using Packed = typename PackedType<T>::type;

template <typename To, typename From>
__device__ __forceinline__ To bits(From from) {
  static_assert(sizeof(To) == sizeof(From));
  To to;
  memcpy(&to, &from, sizeof(To));
  return to;
}

template <typename T>
__device__ __forceinline__ uint32_t pack(float low, float high) {
  if constexpr (std::is_same_v<T, __half>) {
    return bits<uint32_t>(__floats2half2_rn(low, high));
  } else {
    return bits<uint32_t>(__floats2bfloat162_rn(low, high));
  }
}

// Both halves become the low, or the high, one.
__device__ __forceinline__ __half2 low_twice(__half2 x) { return __low2half2(x); }
__device__ __forceinline__ __half2 high_twice(__half2 x) { return __high2half2(x); }
__device__ __forceinline__ __nv_bfloat162 low_twice(__nv_bfloat162 x) { return __low2bfloat162(x); }
__device__ __forceinline__ __nv_bfloat162 high_twice(__nv_bfloat162 x) {
  return __high2bfloat162(x);
}

__device__ __forceinline__ float2 unpack(__half2 x) { return __half22float2(x); }
__device__ __forceinline__ float2 unpack(__nv_bfloat162 x) {
  // A bfloat16 is the upper half of a float.
  const uint32_t word = bits<uint32_t>(x);
  return make_float2(__uint_as_float(word << 16), __uint_as_float(word & 0xffff0000u));
}

}  // namespace msda
