// Image input: from a decoded image to its place in a network's input, in one kernel.
//
// Problem   target = (resize(image) - mean) / std, and zero to the right of and below the resized
//           image. resize() is OpenCV's INTER_LINEAR for 8 bits, to the last bit: weights in 11
//           bits, without antialiasing.
// Layout    image [H,W,3] uint8, target [3,H,W].
// Threads   A thread computes kImageInputRows pixels of a column; the lanes of a warp have
//           neighbouring columns, so that a warp writes whole sectors of each plane.
// Limits    those of check() in image_input_params.h.
#pragma once

#include "msda/cuda_launch.cuh"
#include "msda/device.cuh"
#include "msda/image_input_params.h"
#include "msda/vector.cuh"

namespace msda {

inline constexpr int kImageInputThreads = 128;
inline constexpr int kImageInputRows = 4;
inline constexpr float kImageWeightOne = 2048.0f;  // a weight of 1 in fixed point

// The two positions of the image that a position of the resized axis lies between.
struct ImageTaps {
  int first, second;
  int first_weight, second_weight;  // in fixed point
};

// Source: cv::resize. Outside of the image both positions are its border. Along a row the first
// one then has the whole weight; along a column the two still share it, which rounds differently.
//   scale  1 / (resized size / size), rounded twice
template <bool kAlongRow>
__device__ __forceinline__ ImageTaps image_taps(int position, double scale, int size) {
  // One rounding a step: nvcc would contract a * b - c.
  const float place = static_cast<float>(__dmul_rn(position + 0.5, scale) - 0.5);
  int first = static_cast<int>(floorf(place));
  float fraction = place - floorf(place);
  if (kAlongRow && (first < 0 || first >= size - 1)) fraction = 0.0f;
  const auto inside = [&](int x) { return x < 0 ? 0 : x < size ? x : size - 1; };
  return {inside(first), inside(first + 1),
          static_cast<int>(rintf((1.0f - fraction) * kImageWeightOne)),
          static_cast<int>(rintf(fraction * kImageWeightOne))};
}

template <typename T>
__global__ void __launch_bounds__(kImageInputThreads)
    image_input_kernel(const __grid_constant__ ImageInputProblem problem,
                       const __grid_constant__ ImageInputArguments arguments, double scale_y,
                       double scale_x) {
  const int x = static_cast<int>(blockIdx.x) * kImageInputThreads + static_cast<int>(threadIdx.x);
  const int target_width = static_cast<int>(problem.target_width);
  const int target_height = static_cast<int>(problem.target_height);
  if (x >= target_width) return;
  const int first_row = static_cast<int>(blockIdx.y) * kImageInputRows;
  const int width = static_cast<int>(problem.image_width);
  const ImageTaps column = image_taps<true>(x, scale_x, width);
  const uint8_t* const image = static_cast<const uint8_t*>(arguments.image);
  const int64_t plane = problem.target_height * problem.target_width;
#pragma unroll
  for (int i = 0; i < kImageInputRows; ++i) {
    const int y = first_row + i;
    if (y >= target_height) return;
    T* const target = static_cast<T*>(arguments.target) + int64_t{y} * target_width + x;
    if (x >= problem.width || y >= problem.height) {
      for (int channel = 0; channel < 3; ++channel) target[channel * plane] = narrow<T>(0.0f);
      continue;
    }
    const ImageTaps row = image_taps<false>(y, scale_y, static_cast<int>(problem.image_height));
    const uint8_t* const above = image + row.first * problem.row_bytes;
    const uint8_t* const below = image + row.second * problem.row_bytes;
#pragma unroll
    for (int channel = 0; channel < 3; ++channel) {
      const int byte = problem.bgr ? 2 - channel : channel;
      const auto blend = [&](const uint8_t* line) {
        return __ldg(line + 3 * column.first + byte) * column.first_weight +
               __ldg(line + 3 * column.second + byte) * column.second_weight;
      };
      const int pixel = ((row.first_weight * (blend(above) >> 4) >> 16) +
                         (row.second_weight * (blend(below) >> 4) >> 16) + 2) >>
                        2;
      target[channel * plane] =
          narrow<T>((static_cast<float>(pixel) - problem.mean[channel]) / problem.std[channel]);
    }
  }
}

template <typename T>
cudaError_t run_image_input(const ImageInputProblem& problem, const ImageInputArguments& arguments,
                            cudaStream_t stream) {
  const auto scale = [](int64_t resized, int64_t size) {
    return 1.0 / (static_cast<double>(resized) / static_cast<double>(size));
  };
  const auto blocks = [](int64_t size, int64_t of_block) {
    return static_cast<unsigned>((size + of_block - 1) / of_block);
  };
  const dim3 grid(blocks(problem.target_width, kImageInputThreads),
                  blocks(problem.target_height, kImageInputRows));
  return launch(image_input_kernel<T>, grid, kImageInputThreads, stream, problem, arguments,
                scale(problem.height, problem.image_height),
                scale(problem.width, problem.image_width));
}

}  // namespace msda
