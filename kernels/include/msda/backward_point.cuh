// What one lane of backward_group.cuh does with one point, and how the lanes of a group put their
// parts together.
#pragma once

#include "msda/sample.cuh"

namespace msda {

// Of four numbers that each lane of a group has, their sums over the group: lane i gets the sum of
// number i % 4.
template <int kLanes>
__device__ __forceinline__ float sum_four(float first, float second, float third, float fourth) {
  const bool odd = threadIdx.x & 1;
  const bool upper = threadIdx.x & 2;
  const float low = (odd ? second : first) + __shfl_xor_sync(kWholeWarp, odd ? first : second, 1);
  const float high = (odd ? fourth : third) + __shfl_xor_sync(kWholeWarp, odd ? third : fourth, 1);
  float sum = (upper ? high : low) + __shfl_xor_sync(kWholeWarp, upper ? low : high, 2);
#pragma unroll
  for (int distance = 4; distance < kLanes; distance *= 2) {
    sum += __shfl_xor_sync(kWholeWarp, sum, distance);
  }
  return sum;
}

// start + cell * stride, in one instruction. The compiler widens the stride once and for all
// instead, and needs four to multiply 64-bit numbers.
__device__ __forceinline__ const char* at_cell(const char* start, int32_t cell, int32_t stride) {
#if defined(__CUDA_ARCH__)
  const char* address;
  asm("mad.wide.s32 %0, %1, %2, %3;" : "=l"(address) : "r"(cell), "r"(stride), "l"(start));
  return address;
#else
  return start + static_cast<int64_t>(cell) * stride;
#endif
}

// As atomic_add(). The compiler cannot tell that an address from at_cell() is one of global memory,
// and would take the slower instruction that asks, and returns the old numbers.
__device__ __forceinline__ void add_four(const char* address, const float (&number)[4]) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("red.relaxed.gpu.global.add.v4.f32 [%0], {%1, %2, %3, %4};" ::"l"(
                   __cvta_generic_to_global(address)),
               "f"(number[0]), "f"(number[1]), "f"(number[2]), "f"(number[3]));
#elif defined(__CUDA_ARCH__)
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    asm volatile("red.relaxed.gpu.global.add.f32 [%0], %1;" ::"l"(
                     __cvta_generic_to_global(address + i * sizeof(float))),
                 "f"(number[i]));
  }
#else
  atomic_add<float, 4>(reinterpret_cast<float*>(const_cast<char*>(address)), number);
#endif
}

// A lane's channels of one point: adds to those of the corners in grad_value, and gives the
// products of grad_output with those in value. place and weight as SharedSamples has them; value
// and grad_value point to the lane's channels of cell 0, and have strides in bytes. kWhole: every
// corner is inside.
template <typename T, bool kWhole>
__device__ __forceinline__ void take_point(const Vector<T, 4>& grad, uint2 place, float4 weight,
                                           const char* value, int value_stride,
                                           const char* grad_value, int grad_stride,
                                           float (&product)[4]) {
  const float scale[4] = {weight.x, weight.y, weight.z, weight.w};
  const int32_t top_left = cell_of(place.x);
  const int32_t bottom_left = top_left + static_cast<int32_t>(place.y);
  const int32_t cell[4] = {top_left, top_left + 1, bottom_left, bottom_left + 1};
  Vector<T, 4> corner[4];
#pragma unroll
  for (int c = 0; c < 4; ++c) {
    corner[c] = load_if<T, 4>(kWhole || has_corner(place.x, c),
                              reinterpret_cast<const T*>(at_cell(value, cell[c], value_stride)));
  }
#pragma unroll
  for (int c = 0; c < 4; ++c) {
    product[c] = 0;
    float grad_cell[4];
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      product[c] += grad[k] * corner[c][k];
      grad_cell[k] = scale[c] * grad[k];
    }
    if (kWhole || has_corner(place.x, c)) {
      add_four(at_cell(grad_value, cell[c], grad_stride), grad_cell);
    }
  }
}

}  // namespace msda
