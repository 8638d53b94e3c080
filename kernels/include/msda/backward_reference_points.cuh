// The gradient of the reference points, from the gradients of the samples' pixel coordinates.
//
// Problem   Points: the sum over heads and points of the pixels' gradients, times the level's size.
//           Boxes: the same for the centre; for the size, the sum of the pixels' gradients times
//           their offsets, times half the level's size over the level's number of points.
// Threads   One thread makes one (n,q,level): no atomics, a fixed order of sums.
// Traffic   the pixels' gradients once; boxes also the offsets.
// Registers sm_90: 32, no spills; 128 threads a block.
#pragma once

#include "msda/backward_work.h"
#include "msda/bilinear.h"
#include "msda/cuda_launch.cuh"
#include "msda/vector.cuh"

namespace msda {

inline constexpr int kReferenceThreads = 128;

template <typename T>
__global__ void __launch_bounds__(kReferenceThreads)
    reference_kernel(const __grid_constant__ Problem problem,
                     const __grid_constant__ BackwardArguments arguments,
                     const Accumulate<T>* const grad_pixels) {
  using Real = Accumulate<T>;
  const int64_t thread = static_cast<int64_t>(blockIdx.x) * kReferenceThreads + threadIdx.x;
  const int64_t query_index = thread / problem.num_levels;  // (n, q)
  const int level_index = static_cast<int>(thread - query_index * problem.num_levels);
  if (query_index >= problem.batch_size * problem.num_queries) return;
  const bool boxes = problem.locations == Locations::kReferenceBoxes;
  const int num_points = problem.points_per_level[level_index];
  int64_t first_point = 0;
  for (int before = 0; before < level_index; ++before) {
    first_point += problem.points_per_level[before];
  }

  Pair<Real> centre{};
  Pair<Real> stretch{};
  for (int64_t head = 0; head < problem.num_heads; ++head) {
    const int64_t point =
        (query_index * problem.num_heads + head) * problem.total_points + first_point;
    Cursor<T> offsets(arguments.forward.sampling_locations, 2 * point,
                      problem.location_type != problem.value_type);
    const Real* pixel = grad_pixels + 2 * point;
    for (int i = 0; i < num_points; ++i, pixel += 2, offsets.advance(2)) {
      centre.x += pixel[0];
      centre.y += pixel[1];
      if (boxes) {
        // A pixel without a gradient counts zero, even with an offset that is not finite.
        if (pixel[0] != 0) stretch.x += pixel[0] * offsets.scalar(0);
        if (pixel[1] != 0) stretch.y += pixel[1] * offsets.scalar(1);
      }
    }
  }
  const Level level =
      read_level(arguments.forward.spatial_shapes, arguments.forward.level_start_index,
                 problem.int64_shapes, level_index, problem.num_cells);
  const Real width = static_cast<Real>(level.width);
  const Real height = static_cast<Real>(level.height);
  Real* const gradient =
      static_cast<Real*>(arguments.grad_reference_points) + thread * (boxes ? 4 : 2);
  gradient[0] = centre.x * width;
  gradient[1] = centre.y * height;
  if (boxes) {
    const Real half_per_point = Real(0.5) / static_cast<Real>(max(num_points, 1));
    gradient[2] = stretch.x * half_per_point * width;
    gradient[3] = stretch.y * half_per_point * height;
  }
}

template <typename T>
cudaError_t launch_reference(const Problem& problem, const BackwardArguments& arguments,
                             const BackwardWork& work, cudaStream_t stream) {
  const int64_t threads = problem.batch_size * problem.num_queries * problem.num_levels;
  return launch_linear(reference_kernel<T>, threads, kReferenceThreads, stream, problem, arguments,
                       static_cast<const Accumulate<T>*>(work.grad_pixels));
}

}  // namespace msda
