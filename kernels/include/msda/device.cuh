// Device primitives: every intrinsic and line of PTX that the kernels use, each with a plain C++
// form for a host compiler. tests/matrix/cuda_emulator compiles the kernels that way.
#pragma once

#include <cuda_runtime_api.h>

#include <cmath>
#include <cstdint>
#include <cstring>

#if defined(__CUDA_ARCH__)
#define MSDA_PTX 1
#else
#define MSDA_PTX 0
#endif

namespace msda {

inline constexpr unsigned kFullMask = 0xffffffffu;  // every lane of a warp

template <typename To, typename From>
__device__ __forceinline__ To bits(From from) {
  static_assert(sizeof(To) == sizeof(From));
  To to;
  memcpy(&to, &from, sizeof(To));
  return to;
}

// ---- Compiler barriers --------------------------------------------------------------------------

// Hides where a pointer comes from. Otherwise nvcc splits it into a part that is uniform over the
// warp and a rest, which costs two additions for every address that is derived from it.
__device__ __forceinline__ const char* opaque(const char* pointer) {
#if MSDA_PTX
  asm("" : "+l"(pointer));
#endif
  return pointer;
}

// Hides where a number comes from. A condition that it encodes then occupies no predicate register.
__device__ __forceinline__ uint32_t opaque(uint32_t number) {
#if MSDA_PTX
  asm("" : "+r"(number));
#endif
  return number;
}

// Keeps nvcc from hoisting what depends on the number out of a loop, which would occupy registers.
__device__ __forceinline__ int no_hoist(int number) {
#if MSDA_PTX
  asm volatile("" : "+r"(number));
#endif
  return number;
}

// ---- Arithmetic ---------------------------------------------------------------------------------

inline constexpr float kLog2E = 1.4426950408889634f;

// 2^x: ex2.approx has the accuracy of __expf() without its range reduction. Results that are not
// normal numbers become 0 or infinity.
__device__ __forceinline__ float exp2_approx(float x) {
#if MSDA_PTX
  float power;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(power) : "f"(x));
  return power;
#else
  return exp2f(x);
#endif
}

// 1 / x with an error of 2^-23 at most, for normal numbers.
__device__ __forceinline__ float reciprocal_approx(float x) {
#if MSDA_PTX
  float reciprocal;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(reciprocal) : "f"(x));
  return reciprocal;
#else
  return 1 / x;
#endif
}

// Adding 1.5 * 2^23 rounds a float to the nearest integer: one unit of the sum's last bit is 1. The
// bits of the sum are those of kRounder plus that integer.
inline constexpr float kRounder = 12582912.0f;
inline constexpr uint32_t kRounderBits = 0x4b400000u;

// a / b for a >= 0 and b > 0, both below 2^30, in fewer instructions than an integer division.
__device__ __forceinline__ int divide(int a, int b) {
  const float reciprocal = reciprocal_approx(static_cast<float>(b));
  int quotient = static_cast<int>(static_cast<float>(a) * reciprocal);
  // The first quotient is off by a few parts in 2^22. Dividing the remainder leaves an error of 1.
  quotient += static_cast<int>(static_cast<float>(a - quotient * b) * reciprocal);
  const int remainder = a - quotient * b;
  return quotient - (remainder < 0) + (remainder >= b);
}

// ---- Bytes --------------------------------------------------------------------------------------

// Of the eight bytes of two words, the four that the digits of `selector` number, the lowest first.
template <uint32_t kSelector>
__device__ __forceinline__ uint32_t select_bytes(uint32_t low, uint32_t high) {
#if MSDA_PTX
  return __byte_perm(low, high, kSelector);
#else
  const uint64_t bytes = static_cast<uint64_t>(high) << 32 | low;
  uint32_t result = 0;
  for (int i = 0; i < 4; ++i) {
    const int place = kSelector >> (4 * i) & 7;
    result |= static_cast<uint32_t>(bytes >> (8 * place) & 255) << (8 * i);
  }
  return result;
#endif
}

// sum + a.low * b[0] + a.high * b[1], or b[2] and b[3]: a holds two numbers of 16 bits, b four of
// 8 bits, all with a sign.
template <bool kUpper>
__device__ __forceinline__ int32_t multiply_add_bytes(uint32_t a, uint32_t b, int32_t sum) {
#if MSDA_PTX
  const int numbers = static_cast<int>(a), bytes = static_cast<int>(b);
  return kUpper ? __dp2a_hi(numbers, bytes, sum) : __dp2a_lo(numbers, bytes, sum);
#else
  const auto product = [&](int i) {
    const uint32_t byte = b >> (kUpper ? 16 : 0) >> (8 * i);
    return static_cast<int16_t>(a >> (16 * i)) * static_cast<int8_t>(byte);
  };
  return sum + product(0) + product(1);
#endif
}

// ---- Sums over the lanes of a group: a power of two of neighbouring lanes -----------------------

template <typename Real>
__device__ __forceinline__ Real sum_over_group(Real x, int group_size) {
  for (int distance = group_size / 2; distance > 0; distance /= 2) {
    x += __shfl_xor_sync(kFullMask, x, distance);
  }
  return x;
}

template <typename Real>
__device__ __forceinline__ Real max_over_group(Real x, int group_size) {
  for (int distance = group_size / 2; distance > 0; distance /= 2) {
    x = max(x, __shfl_xor_sync(kFullMask, x, distance));
  }
  return x;
}

// ---- Sums over the lanes of a warp, in one instruction from compute capability 8.0 on -----------

__device__ __forceinline__ int sum_over_warp(int x) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
  return __reduce_add_sync(kFullMask, x);
#else
  return sum_over_group(x, 32);
#endif
}

// The bitwise or.
__device__ __forceinline__ uint32_t or_over_warp(uint32_t x) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
  return __reduce_or_sync(kFullMask, x);
#else
  for (int distance = 16; distance > 0; distance /= 2) {
    x |= __shfl_xor_sync(kFullMask, x, distance);
  }
  return x;
#endif
}

// ---- Addresses ----------------------------------------------------------------------------------

// start + index * stride in one instruction. nvcc would widen the stride once, and then need four
// instructions for each 64-bit product.
__device__ __forceinline__ const char* multiply_add_address(const char* start, int32_t index,
                                                            int32_t stride) {
#if MSDA_PTX
  const char* address;
  asm("mad.wide.s32 %0, %1, %2, %3;" : "=l"(address) : "r"(index), "r"(stride), "l"(start));
  return address;
#else
  return start + static_cast<int64_t>(index) * stride;
#endif
}

// ---- Loads and stores ---------------------------------------------------------------------------

// Where a load leaves its line in the caches.
enum class Cached {
  kNormal,
  kEvictFirst,     // read once: leaves L1 before cells that neighbouring queries read again
  kLine,           // L2 fetches the 128-byte line, which holds the same cell of the next head
  kLineEvictLast,  // the same; the line leaves L1 last
};

// A word of 2, 4, 8 or 16 bytes, through the read-only path: no kernel writes what it reads.
template <Cached kCached, typename Word>
__device__ __forceinline__ Word load_word(const Word* address) {
#if MSDA_PTX
  Word word;
  if constexpr (kCached == Cached::kEvictFirst && sizeof(Word) == 16) {
    asm("ld.global.nc.L1::evict_first.v4.u32 {%0, %1, %2, %3}, [%4];"
        : "=r"(word.x), "=r"(word.y), "=r"(word.z), "=r"(word.w)
        : "l"(address));
    return word;
  } else if constexpr (kCached == Cached::kEvictFirst && sizeof(Word) == 8) {
    asm("ld.global.nc.L1::evict_first.v2.u32 {%0, %1}, [%2];"
        : "=r"(word.x), "=r"(word.y)
        : "l"(address));
    return word;
  } else if constexpr (kCached == Cached::kEvictFirst && sizeof(Word) == 4) {
    asm("ld.global.nc.L1::evict_first.u32 %0, [%1];" : "=r"(word) : "l"(address));
    return word;
  } else if constexpr (kCached == Cached::kEvictFirst) {
    static_assert(sizeof(Word) == 2);
    asm("ld.global.nc.L1::evict_first.u16 %0, [%1];" : "=h"(word) : "l"(address));
    return word;
  } else if constexpr (kCached == Cached::kLine && sizeof(Word) == 8) {
    asm("ld.global.nc.L2::128B.v2.u32 {%0, %1}, [%2];" : "=r"(word.x), "=r"(word.y) : "l"(address));
    return word;
  } else if constexpr (kCached == Cached::kLineEvictLast && sizeof(Word) == 8) {
    asm("ld.global.nc.L1::evict_last.L2::128B.v2.u32 {%0, %1}, [%2];"
        : "=r"(word.x), "=r"(word.y)
        : "l"(address));
    return word;
  } else if constexpr (kCached == Cached::kLine) {
    asm("ld.global.nc.L2::128B.v4.u32 {%0, %1, %2, %3}, [%4];"
        : "=r"(word.x), "=r"(word.y), "=r"(word.z), "=r"(word.w)
        : "l"(address));
    return word;
  } else if constexpr (kCached == Cached::kLineEvictLast) {
    asm("ld.global.nc.L1::evict_last.L2::128B.v4.u32 {%0, %1, %2, %3}, [%4];"
        : "=r"(word.x), "=r"(word.y), "=r"(word.z), "=r"(word.w)
        : "l"(address));
    return word;
  }
#endif
  return __ldg(address);
}

// 16 bytes of the output, past L1. (nvcc turns a plain assignment into four stores.)
__device__ __forceinline__ void store_past_l1(void* address, uint4 words) {
  __stcg(static_cast<uint4*>(address), words);
}

// ---- Kernels that overlap with the last one -----------------------------------------------------

// Lets a kernel of launch_early() begin where blocks of this one have ended, once every block of
// this one has begun.
__device__ __forceinline__ void begin_next_kernel() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;");
#endif
}

// Waits, in a kernel of launch_early(), for the kernel before it and for what that has written.
__device__ __forceinline__ void wait_for_last_kernel() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

// ---- Atomics ------------------------------------------------------------------------------------

// Atomically adds kSize numbers to consecutive addresses, aligned to the vector. Compute capability
// 9.0 and later adds four floats at once.
template <typename Real, int kSize>
__device__ __forceinline__ void atomic_add(Real* address, const Real (&values)[kSize]) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  if constexpr (sizeof(Real) == 4 && kSize % 4 == 0) {
#pragma unroll
    for (int i = 0; i < kSize; i += 4) {
      atomicAdd(reinterpret_cast<float4*>(address + i),
                make_float4(values[i], values[i + 1], values[i + 2], values[i + 3]));
    }
  } else
#endif
  {
#pragma unroll
    for (int i = 0; i < kSize; ++i) atomicAdd(address + i, values[i]);
  }
}

// atomic_add() of four floats to an address in global memory that nvcc cannot recognise as such,
// as from multiply_add_address(). nvcc would emit the slower generic atomic, which also returns
// the old numbers.
__device__ __forceinline__ void reduce_four(const char* address, const float (&values)[4]) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("red.relaxed.gpu.global.add.v4.f32 [%0], {%1, %2, %3, %4};" ::"l"(
                   __cvta_generic_to_global(address)),
               "f"(values[0]), "f"(values[1]), "f"(values[2]), "f"(values[3]));
#elif MSDA_PTX
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    asm volatile("red.relaxed.gpu.global.add.f32 [%0], %1;" ::"l"(
                     __cvta_generic_to_global(address + i * sizeof(float))),
                 "f"(values[i]));
  }
#else
  atomic_add<float, 4>(reinterpret_cast<float*>(const_cast<char*>(address)), values);
#endif
}

}  // namespace msda
