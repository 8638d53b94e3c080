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

}  // namespace msda
