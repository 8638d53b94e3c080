// GELU for kernels that compute it beside products.
#pragma once

#include "msda/device.cuh"

namespace msda {

// GELU(x) = x * Phi(x). Phi(x) = 1/2 + x R(x^2), where R has degree 8 and least maximal error of
// GELU up to |x| = 4.25. Beyond, the sum leaves [0, 1], so saturation makes Phi exact. The absolute
// error of GELU is at most 4.3e-5. That is 11 operations, and erff takes more than 20.
__device__ __forceinline__ float fast_gelu(float x) {
  constexpr float kR[] = {3.98819208e-01f,  -6.61902726e-02f, 9.71877482e-03f,
                          -1.07907678e-03f, 8.84889159e-05f,  -5.14748990e-06f,
                          1.98614430e-07f,  -4.51525572e-09f, 4.54700826e-11f};
  const float square = x * x;
  float sum = kR[8];
#pragma unroll
  for (int power = 7; power >= 0; --power) sum = fmaf(sum, square, kR[power]);
  return x * __saturatef(fmaf(x, sum, 0.5f));
}

}  // namespace msda
