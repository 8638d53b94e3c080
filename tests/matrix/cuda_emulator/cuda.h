// CUDA's keywords, built-in variables and functions for .cu files that are compiled as plain C++
// (g++ -x c++ -include cuda.h), as far as the kernels use them. emulator.h runs them.
//
// Functions that approximate on a GPU are exact to about the last bit here. nvcc makes a * b + c
// one rounding where it can; here it is two.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>
#include <cuda_runtime_api.h>
#include <math.h>

#include <cmath>
#include <cstdint>
#include <cstring>
#include <tuple>
#include <type_traits>

#define MSDA_EMULATED

#include "emulator.h"
#include "hopper.h"
#include "tensor_core.h"

#undef __constant__
#undef __device__
#undef __forceinline__
#undef __global__
#undef __grid_constant__
#undef __host__
#undef __launch_bounds__
#undef __noinline__
#undef __shared__
#define __constant__
#define __device__
#define __forceinline__ inline
#define __global__
#define __grid_constant__
#define __host__
#define __launch_bounds__(...)
// One block runs at a time, so one copy is enough. Static memory that is also thread-local lies in
// a place of its own, which the emulator fills with garbage when a block begins.
#define __shared__ static thread_local

extern uint3 threadIdx, blockIdx;
extern dim3 blockDim, gridDim;
inline constexpr int warpSize = emulator::kWarp;

// Launches.

template <typename... Parameters, typename... Arguments>
cudaError_t cudaLaunchKernelEx(const cudaLaunchConfig_t* config, void (*kernel)(Parameters...),
                               Arguments... arguments) {
  struct Call {
    void (*kernel)(Parameters...);
    std::tuple<std::remove_const_t<Parameters>...> arguments;
  } call{kernel, {arguments...}};
  const auto body = [](void* data) {
    Call& own = *static_cast<Call*>(data);
    std::apply(own.kernel, own.arguments);
  };
  return emulator::launch(*config, reinterpret_cast<const void*>(kernel), body, &call);
}

// The GPU: so small that blocks go from one tile to the next.

inline cudaError_t cudaGetDevice(int* device) {
  *device = 0;
  return cudaSuccess;
}
inline cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int /*device*/) {
  switch (attribute) {
    case cudaDevAttrMultiProcessorCount:
      *value = 2;
      return cudaSuccess;
    case cudaDevAttrComputeCapabilityMajor:
      *value = 9;
      return cudaSuccess;
    case cudaDevAttrComputeCapabilityMinor:
      *value = 0;
      return cudaSuccess;
    case cudaDevAttrMaxSharedMemoryPerBlockOptin:
      *value = 232448;
      return cudaSuccess;
    default:
      return cudaErrorInvalidValue;
  }
}

inline cudaError_t cudaFuncGetAttributes(cudaFuncAttributes* code, const void*) {
  code->ptxVersion = 90;
  return cudaSuccess;
}
inline cudaError_t cudaFuncSetAttribute(const void*, cudaFuncAttribute, int) { return cudaSuccess; }

// Barriers.

inline void __syncthreads(emulator::Site site = emulator::here()) { emulator::meet_block(site); }
inline void __syncwarp(unsigned mask = ~0u, emulator::Site site = emulator::here()) {
  emulator::meet_warp(emulator::Operation::kSyncwarp, mask, 0, 0, site);
}

// Shuffles and votes.

namespace emulator {

template <typename T>
T shuffle(unsigned mask, T value, int source, Site site) {
  static_assert(sizeof(T) <= sizeof(uint64_t) && std::is_trivially_copyable_v<T>);
  uint64_t word = 0;
  std::memcpy(&word, &value, sizeof(T));
  word = meet_warp(Operation::kShuffle, mask, word, source, site);
  std::memcpy(&value, &word, sizeof(T));
  return value;
}

// The first lane of the calling lane's part of the warp.
inline int first_lane(int width) {
  if (width < 1 || width > kWarp || (width & (width - 1))) {
    fail("the width of a shuffle should be a power of two up to 32, got %d", width);
  }
  return lane() & ~(width - 1);
}

}  // namespace emulator

template <typename T>
T __shfl_sync(unsigned mask, T value, int source, int width = warpSize,
              emulator::Site site = emulator::here()) {
  const int lane = emulator::first_lane(width) + (source & (width - 1));
  return emulator::shuffle(mask, value, lane, site);
}
template <typename T>
T __shfl_xor_sync(unsigned mask, T value, int lane_mask, int width = warpSize,
                  emulator::Site site = emulator::here()) {
  // A lane of an earlier part can be read, one of a later part cannot.
  const int lane = emulator::lane() ^ lane_mask;
  const bool reads = lane < emulator::first_lane(width) + width;
  return emulator::shuffle(mask, value, reads ? lane : emulator::lane(), site);
}
template <typename T>
T __shfl_up_sync(unsigned mask, T value, unsigned delta, int width = warpSize,
                 emulator::Site site = emulator::here()) {
  const int lane = emulator::lane() - static_cast<int>(delta);
  const bool reads = lane >= emulator::first_lane(width);
  return emulator::shuffle(mask, value, reads ? lane : emulator::lane(), site);
}
inline unsigned __ballot_sync(unsigned mask, int predicate,
                              emulator::Site site = emulator::here()) {
  return static_cast<unsigned>(
      emulator::meet_warp(emulator::Operation::kBallot, mask, predicate != 0, 0, site));
}
inline int __all_sync(unsigned mask, int predicate, emulator::Site site = emulator::here()) {
  return emulator::meet_warp(emulator::Operation::kAll, mask, predicate != 0, 0, site) != 0;
}
inline int __any_sync(unsigned mask, int predicate, emulator::Site site = emulator::here()) {
  return emulator::meet_warp(emulator::Operation::kAny, mask, predicate != 0, 0, site) != 0;
}

// Memory. Loads and atomics of a misaligned address fail as on a GPU.

namespace emulator {

// The GPU's alignment of a type: its size, which is a power of two for all that it loads at once.
template <typename T>
void check_aligned(const T* address, const char* function, Site site) {
  if (reinterpret_cast<uintptr_t>(address) % sizeof(T) != 0) {
    fail("%s of %zu bytes at the misaligned address %p (%s:%d)", function, sizeof(T),
         static_cast<const volatile void*>(address), file_name(site), site.line);
  }
}

template <typename T, typename Combine>
T atomic(T* address, const char* function, Site site, const Combine& combine) {
  check_aligned(address, function, site);
  const T old = *address;
  *address = combine(old);
  return old;
}

}  // namespace emulator

// Always inline, for a message about a bad address to name the line that calls.
template <typename T>
__attribute__((always_inline)) inline T __ldg(const T* address,
                                              emulator::Site site = emulator::here()) {
  emulator::check_aligned(address, "__ldg", site);
  return *address;
}

template <typename T>
__attribute__((always_inline)) inline void __stcg(T* address, T value,
                                                  emulator::Site site = emulator::here()) {
  emulator::check_aligned(address, "__stcg", site);
  *address = value;
}

template <typename T>
T atomicAdd(T* address, std::common_type_t<T> value, emulator::Site site = emulator::here()) {
  return emulator::atomic(address, "atomicAdd", site,
                          [&](T old) { return static_cast<T>(old + value); });
}
inline float4 atomicAdd(float4* address, float4 value, emulator::Site site = emulator::here()) {
  return emulator::atomic(address, "atomicAdd", site, [&](float4 old) {
    return make_float4(old.x + value.x, old.y + value.y, old.z + value.z, old.w + value.w);
  });
}
template <typename T>
T atomicMax(T* address, std::common_type_t<T> value, emulator::Site site = emulator::here()) {
  static_assert(std::is_integral_v<T>);
  return emulator::atomic(address, "atomicMax", site,
                          [&](T old) { return old > value ? old : value; });
}
// Arithmetic.

// The number that is not NaN, as on a GPU.
template <typename A, typename B>
std::common_type_t<A, B> max(A a, B b) {
  using T = std::common_type_t<A, B>;
  if constexpr (std::is_floating_point_v<T>) {
    return std::fmax(static_cast<T>(a), static_cast<T>(b));
  } else {
    return static_cast<T>(a) > static_cast<T>(b) ? static_cast<T>(a) : static_cast<T>(b);
  }
}
template <typename A, typename B>
std::common_type_t<A, B> min(A a, B b) {
  using T = std::common_type_t<A, B>;
  if constexpr (std::is_floating_point_v<T>) {
    return std::fmin(static_cast<T>(a), static_cast<T>(b));
  } else {
    return static_cast<T>(a) < static_cast<T>(b) ? static_cast<T>(a) : static_cast<T>(b);
  }
}

inline int __popc(unsigned x) { return __builtin_popcount(x); }

namespace emulator {

template <typename To, typename From>
To bits(From from) {
  static_assert(sizeof(To) == sizeof(From));
  To to;
  std::memcpy(&to, &from, sizeof(To));
  return to;
}

}  // namespace emulator

inline float __uint_as_float(unsigned x) { return emulator::bits<float>(x); }
inline unsigned __float_as_uint(float x) { return emulator::bits<unsigned>(x); }

inline float __fmul_rn(float a, float b) { return a * b; }
inline double __dmul_rn(double a, double b) { return a * b; }
inline float __saturatef(float x) { return std::fmin(std::fmax(x, 0.0f), 1.0f); }  // NaN: 0

// 16-bit multiply-adds, which NVIDIA's headers have for the GPU only. As templates they give way to
// a header that has them. The product is exact in float; the sum is rounded to float, then to 16
// bits.

namespace emulator {

inline __half multiply_add(__half a, __half b, __half c) {
  return __float2half_rn(std::fma(__half2float(a), __half2float(b), __half2float(c)));
}
inline __nv_bfloat16 multiply_add(__nv_bfloat16 a, __nv_bfloat16 b, __nv_bfloat16 c) {
  return __float2bfloat16_rn(
      std::fma(__bfloat162float(a), __bfloat162float(b), __bfloat162float(c)));
}

template <typename T>
using Pair = std::enable_if_t<std::is_same_v<T, __half2> || std::is_same_v<T, __nv_bfloat162>, T>;

}  // namespace emulator

template <typename T>
emulator::Pair<T> __hfma2(T a, T b, T c) {
  return {emulator::multiply_add(a.x, b.x, c.x), emulator::multiply_add(a.y, b.y, c.y)};
}
