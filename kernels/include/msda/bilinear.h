// The arithmetic of one bilinear sample, shared by the kernels of the GPU and of the CPU.
//
// A location (x, y) in [0, 1] of a level of H x W cells has the pixel coordinates (x * W - 0.5,
// y * H - 0.5), in cells; cell 0 has its centre at 0. This is F.grid_sample with
// align_corners=False and zero padding (Deformable DETR, arXiv:2010.04159, eq. 3).
#pragma once

#include <cmath>
#include <cstdint>

#if defined(__CUDACC__)
#define MSDA_HOST_DEVICE __host__ __device__ __forceinline__
#else
#define MSDA_HOST_DEVICE inline
#endif

namespace msda {

// A pixel coordinate, split into its cell, an integer, and the fraction towards the next cell.
// Splitting before adding keeps the fraction exact; a float near 300 alone is off by 1e-5 cells.
template <typename Real>
struct Coordinate {
  Real cell;
  Real fraction;
};

// a * b, rounded once. A contracted multiply-add would make the remainders below meaningless. (The
// CPU sources are compiled with -ffp-contract=off for the same reason.)
MSDA_HOST_DEVICE float multiply(float a, float b) {
#if defined(__CUDA_ARCH__)
  return __fmul_rn(a, b);
#else
  return a * b;
#endif
}
MSDA_HOST_DEVICE double multiply(double a, double b) {
#if defined(__CUDA_ARCH__)
  return __dmul_rn(a, b);
#else
  return a * b;
#endif
}
MSDA_HOST_DEVICE float multiply_add(float a, float b, float c) { return fmaf(a, b, c); }
MSDA_HOST_DEVICE double multiply_add(double a, double b, double c) { return fma(a, b, c); }
MSDA_HOST_DEVICE float round_down(float x) { return floorf(x); }
MSDA_HOST_DEVICE double round_down(double x) { return floor(x); }

// location * size - 0.5.
template <typename Real>
MSDA_HOST_DEVICE Coordinate<Real> at_location(Real location, Real size) {
  const Real scaled = multiply(location, size);
  const Real remainder = multiply_add(location, size, -scaled);
  const Real pixel = scaled - Real(0.5);
  const Real cell = round_down(pixel);
  return {cell, (pixel - cell) + remainder};
}

// reference * size + offset - 0.5; the offset is in cells.
template <typename Real>
MSDA_HOST_DEVICE Coordinate<Real> at_offset(Real reference, Real offset, Real size) {
  const Real scaled = multiply(reference, size);
  const Real remainder = multiply_add(reference, size, -scaled);
  const Real cell = round_down(scaled);
  const Real rest = ((scaled - cell) + remainder) + (offset - Real(0.5));
  const Real step = round_down(rest);
  return {cell + step, rest - step};
}

// The pixels that an offset of 1 moves a sample by, along one axis of a reference box: half of the
// box's size in [0, 1], over the level's number of points, times the level's size in cells.
template <typename Real>
MSDA_HOST_DEVICE Real pixels_per_offset(Real box_size, int32_t num_points, Real size) {
  return box_size * (Real(0.5) / static_cast<Real>(num_points)) * size;
}

// Whether at least one of the two cells that a coordinate lies between is inside the level. False
// for a coordinate that is not finite, so that such a sample reads nothing.
template <typename Real>
MSDA_HOST_DEVICE bool touches(Coordinate<Real> coordinate, Real size) {
  return coordinate.cell >= Real(-1) && coordinate.cell < size;
}

// One level as the kernels see it.
struct Level {
  int32_t height;
  int32_t width;
  int32_t start;  // index of the first cell among the cells of all levels
  bool valid;     // whether it lies inside the value tensor; kernels skip a level that does not
};

template <typename Index>
MSDA_HOST_DEVICE Level make_level(const Index* spatial_shapes, const Index* level_start_index,
                                  int64_t level, int64_t num_cells) {
  const int64_t height = spatial_shapes[2 * level];
  const int64_t width = spatial_shapes[2 * level + 1];
  const int64_t start = level_start_index[level];
  // num_cells is below 2^31, so the product of two sizes up to num_cells fits in 64 bits.
  const bool valid = height > 0 && width > 0 && start >= 0 && height <= num_cells &&
                     width <= num_cells && start <= num_cells &&
                     height * width <= num_cells - start;
  return {static_cast<int32_t>(height), static_cast<int32_t>(width), static_cast<int32_t>(start),
          valid};
}

MSDA_HOST_DEVICE Level read_level(const void* spatial_shapes, const void* level_start_index,
                                  bool int64_shapes, int64_t level, int64_t num_cells) {
  return int64_shapes
             ? make_level(static_cast<const int64_t*>(spatial_shapes),
                          static_cast<const int64_t*>(level_start_index), level, num_cells)
             : make_level(static_cast<const int32_t*>(spatial_shapes),
                          static_cast<const int32_t*>(level_start_index), level, num_cells);
}

// The four cells around a sample: top left, top right, bottom left, bottom right.
template <typename Real>
struct Corners {
  int32_t top_left;  // index of the top left cell within its level; may lie outside
  bool inside[4];
  Real weight[4];  // bilinear
};

// The corners of a sample whose coordinates both touch the level.
template <typename Real>
MSDA_HOST_DEVICE Corners<Real> corners(Coordinate<Real> x, Coordinate<Real> y, const Level& level) {
  const int32_t column = static_cast<int32_t>(x.cell);
  const int32_t row = static_cast<int32_t>(y.cell);
  const bool left = column >= 0;
  const bool right = column + 1 < level.width;
  const bool top = row >= 0;
  const bool bottom = row + 1 < level.height;
  const Real fx = x.fraction;
  const Real fy = y.fraction;
  return {row * level.width + column,
          {top && left, top && right, bottom && left, bottom && right},
          {(1 - fy) * (1 - fx), (1 - fy) * fx, fy * (1 - fx), fy * fx}};
}

}  // namespace msda
