// Packed arithmetic: two 16-bit numbers in a 32-bit word.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <type_traits>

#include "msda/device.cuh"

namespace msda {

// CUDA's type of a pair of T, __half or __nv_bfloat16.
template <typename T>
using Packed = std::conditional_t<std::is_same_v<T, __half>, __half2, __nv_bfloat162>;

template <typename T>
__device__ __forceinline__ uint32_t pack(float low, float high) {
  if constexpr (std::is_same_v<T, __half>) {
    return bits<uint32_t>(__floats2half2_rn(low, high));
  } else {
    return bits<uint32_t>(__floats2bfloat162_rn(low, high));
  }
}

__device__ __forceinline__ float2 unpack(__half2 x) { return __half22float2(x); }
__device__ __forceinline__ float2 unpack(__nv_bfloat162 x) {
  // A bfloat16 is the upper half of a float.
  const uint32_t word = bits<uint32_t>(x);
  return make_float2(__uint_as_float(word << 16), __uint_as_float(word & 0xffff0000u));
}

// a * b and a * b + c; each half is rounded once.
template <typename Pair>
__device__ __forceinline__ Pair multiply_pairs(Pair a, Pair b) {
  return __hmul2(a, b);
}
template <typename Pair>
__device__ __forceinline__ Pair multiply_add_pairs(Pair a, Pair b, Pair c) {
  return __hfma2(a, b, c);
}
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 800
// These GPUs have no bfloat16 arithmetic. The operator refuses the type there; the code compiles.
__device__ __forceinline__ __nv_bfloat162 multiply_add_pairs(__nv_bfloat162 a, __nv_bfloat162 b,
                                                             __nv_bfloat162 c) {
  return __floats2bfloat162_rn(fmaf(__low2float(a), __low2float(b), __low2float(c)),
                               fmaf(__high2float(a), __high2float(b), __high2float(c)));
}
__device__ __forceinline__ __nv_bfloat162 multiply_pairs(__nv_bfloat162 a, __nv_bfloat162 b) {
  return multiply_add_pairs(a, b, __floats2bfloat162_rn(0.0f, 0.0f));
}
#endif

// A pair of twice the low, or twice the high, number.
__device__ __forceinline__ __half2 low_twice(__half2 x) { return __low2half2(x); }
__device__ __forceinline__ __half2 high_twice(__half2 x) { return __high2half2(x); }
__device__ __forceinline__ __nv_bfloat162 low_twice(__nv_bfloat162 x) { return __low2bfloat162(x); }
__device__ __forceinline__ __nv_bfloat162 high_twice(__nv_bfloat162 x) {
  return __high2bfloat162(x);
}

}  // namespace msda
