// Where the cells of a window lie: padding, cyclic shift and mask of shifted windows (Swin
// Transformer, arXiv:2103.14030, section 3.2), without a padded or rolled copy of the map.
#pragma once

#include "msda/device.cuh"
#include "msda/window_params.h"

namespace msda {

// One window of the padded and rolled map. Its cells are numbered row by row.
struct Window {
  int image;
  int row, column;  // of its first cell, before the roll
};

// The region of a cell at an inner row and column, 0 to 3. Cells attend within their region.
__device__ __forceinline__ int region_of(int inner_row, int inner_column, int row_split,
                                         int column_split) {
  return (inner_row >= row_split ? 2 : 0) + (inner_column >= column_split ? 1 : 0);
}

// The map in 32-bit numbers, a kernel argument.
struct WindowMap {
  int height, width;
  int padded_height, padded_width;
  int down, across, windows;  // windows along each axis, and of all images
  int size, shift;            // of a window

  explicit WindowMap(const WindowProblem& problem)
      : height(static_cast<int>(problem.height)),
        width(static_cast<int>(problem.width)),
        padded_height(static_cast<int>(problem.down() * problem.window_size)),
        padded_width(static_cast<int>(problem.across() * problem.window_size)),
        down(static_cast<int>(problem.down())),
        across(static_cast<int>(problem.across())),
        windows(static_cast<int>(problem.num_windows())),
        size(static_cast<int>(problem.window_size)),
        shift(static_cast<int>(problem.shift)) {}

  // The window of a number: image by image, row by row.
  __device__ __forceinline__ Window window(int number) const {
    const int image_and_row = divide(number, across);
    const int column = number - image_and_row * across;
    const int image = divide(image_and_row, down);
    const int row = image_and_row - image * down;
    return {image, row * size + shift, column * size + shift};
  }

  // The window `count` numbers after another, without a division.
  __device__ __forceinline__ Window next(Window window, int count) const {
    window.column += count * size;
    while (window.column >= padded_width + shift) {
      window.column -= padded_width;
      window.row += size;
      if (window.row == padded_height + shift) {
        window.row = shift;
        ++window.image;
      }
    }
    return window;
  }

  // The number of a cell in [N, H, W], or -1 in the padding.
  __device__ __forceinline__ int64_t cell(const Window& window, int inner_row,
                                          int inner_column) const {
    int row = window.row + inner_row;
    int column = window.column + inner_column;
    if (row >= padded_height) row -= padded_height;
    if (column >= padded_width) column -= padded_width;
    if (row >= height || column >= width) return -1;
    return (static_cast<int64_t>(window.image) * height + row) * width + column;
  }

  // Inner rows and columns from these on are another region. Only the last windows along an axis
  // have several.
  __device__ __forceinline__ int row_split(const Window& window) const {
    return window.row == padded_height - size + shift ? size - shift : size;
  }
  __device__ __forceinline__ int column_split(const Window& window) const {
    return window.column == padded_width - size + shift ? size - shift : size;
  }
};

}  // namespace msda
