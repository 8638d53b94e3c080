// Rounding to the types of quantised numbers, int8_t and __nv_fp8_e4m3.
#pragma once

#include <cuda_fp8.h>

#include <type_traits>

#include "msda/device.cuh"

namespace msda {

// Rounds half to even and saturates, as QuantizeLinear of ONNX. int8 has no NaN and gets 0.
template <typename Q>
__device__ __forceinline__ Q quantize(float x) {
  if constexpr (std::is_same_v<Q, int8_t>) {
#if MSDA_PTX
    int rounded;
    asm("cvt.rni.sat.s8.f32 %0, %1;" : "=r"(rounded) : "f"(x));
    return static_cast<int8_t>(rounded);
#else
    const float rounded = rintf(x);
    if (rounded >= 127) return 127;
    return static_cast<int8_t>(rounded > -128 ? rounded : rounded <= -128 ? -128.f : 0.f);
#endif
  } else {
    return Q(x);  // saturates
  }
}

// Four numbers rounded half to even and saturated, the first in the lowest byte. NaN gives 0.
__device__ __forceinline__ uint32_t quantize_four(float a, float b, float c, float d) {
#if MSDA_PTX
  uint32_t word;
  asm("{\n"
      ".reg .s32 a, b, c, d, high;\n"
      "cvt.rni.s32.f32 a, %1;\n"
      "cvt.rni.s32.f32 b, %2;\n"
      "cvt.rni.s32.f32 c, %3;\n"
      "cvt.rni.s32.f32 d, %4;\n"
      "cvt.pack.sat.s8.s32.b32 high, d, c, 0;\n"
      "cvt.pack.sat.s8.s32.b32 %0, b, a, high;\n"
      "}"
      : "=r"(word)
      : "f"(a), "f"(b), "f"(c), "f"(d));
  return word;
#else
  const auto byte = [](float x) -> uint32_t { return static_cast<uint8_t>(quantize<int8_t>(x)); };
  return byte(a) | byte(b) << 8 | byte(c) << 16 | byte(d) << 24;
#endif
}

}  // namespace msda
