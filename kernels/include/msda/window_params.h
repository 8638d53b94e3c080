// The contract of window attention (window_choice.h lists its kernels): sizes, type and pointers of
// one problem. Plain C++.
//
// Letters:
//   N, H, W  images, and the rows and columns of their map
//   C        channels of a cell: heads * d
//   L        cells of a window: window_size * window_size
#pragma once

#include "msda/params.h"

namespace msda {

struct WindowProblem {
  int64_t batch_size = 0;  // N
  int64_t height = 0;      // H
  int64_t width = 0;       // W
  int64_t num_heads = 0;
  int64_t head_dim = 0;  // d
  int64_t window_size = 0;
  int64_t shift = 0;
  DataType type = DataType::kFloat32;  // all tensors, but for a result in int8
  float output_scale = 0;  // a step of the result in int8; 0: the result has the type of qkv

  bool empty() const {
    return batch_size == 0 || height == 0 || width == 0 || num_heads == 0 || head_dim == 0;
  }
  bool quantized_output() const { return output_scale != 0; }
  // The kernels' factor of a result in int8; 0: the result has the type of qkv.
  float output_factor() const { return quantized_output() ? 1 / output_scale : 0; }

  // Windows along each axis of the padded map, and of all images.
  int64_t down() const { return (height + window_size - 1) / window_size; }
  int64_t across() const { return (width + window_size - 1) / window_size; }
  int64_t num_windows() const { return batch_size * down() * across(); }
};

// Tensors are contiguous. Pointers need no more alignment than their elements.
struct WindowArguments {
  const void* qkv = nullptr;      // [N, H, W, 3, heads, d]
  const void* bias = nullptr;     // [heads, L, L]
  const void* padding = nullptr;  // [3, heads, d]: qkv of the padded cells. Null: zeros.
  void* output = nullptr;         // [N, H, W, heads, d]: in int8, result / output_scale
};

// The value that the mask adds to a logit of two cells that only the shift made neighbours.
inline constexpr float kWindowMask = -100.0f;

// Returns one sentence about what is wrong with the problem, or an empty string.
inline std::string check(const WindowProblem& problem) {
  if (problem.window_size < 1) {
    return "window_size: should be 1 or more, got " + std::to_string(problem.window_size);
  }
  if (problem.shift < 0 || problem.shift >= problem.window_size) {
    return "shift: should be 0 or more and below window_size = " +
           std::to_string(problem.window_size) + ", got " + std::to_string(problem.shift);
  }
  if (problem.quantized_output()) {
    const std::string wrong = check_scale("output_scale", problem.output_scale);
    if (!wrong.empty()) return wrong;
  }
  // The kernels count rows, columns, channels and windows in 32 bits.
  constexpr int64_t kLimit = INT32_MAX / 8;
  if (problem.height > kLimit || problem.width > kLimit || problem.window_size > 4096 ||
      problem.num_heads * problem.head_dim > kLimit || problem.num_windows() > kLimit) {
    return "qkv: H, W, C and the number of windows should each be at most 2^28 - 1, and "
           "window_size at most 4096, got N=" +
           std::to_string(problem.batch_size) + " H=" + std::to_string(problem.height) +
           " W=" + std::to_string(problem.width) +
           " C=" + std::to_string(problem.num_heads * problem.head_dim) +
           " window_size=" + std::to_string(problem.window_size);
  }
  return {};
}

}  // namespace msda
