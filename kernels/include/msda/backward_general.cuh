// Backward of multi-scale deformable attention, with given locations and fused: "general" of
// backward_choice.h, which runs any problem.
//
// Problem   Three gradients of every sample:
//             weight  grad_output . sample
//             pixel   grad_output . (difference of the sample across a cell) * weight
//             cells   grad_output * weight * bilinear weight, summed over all samples of a cell
//           The gradient of a given location is that of the pixel times the level's size. Fused:
//           that of an offset is that of the pixel times the pixels per offset; that of a logit is
//           weight * (gradient of the weight - sum over all points of weight * gradient). The work
//           memory keeps the gradients of the pixels for those of the reference points
//           (backward_reference_points.cuh).
// Layout    as forward_general.cuh. grad_value is float (double with double values) whatever the
//           value's type: thousands of samples may add to one cell, and 16-bit sums would lose
//           them.
// Threads   A group of lanes, a power of two up to a warp, works on one (n,q,m); each lane takes
//           kVec channels at a time: 16 bytes of grad_value where D and the addresses allow, else
//           one channel. Shuffles sum the three dot products of a point over the group, whose first
//           lane writes them. Fused: a first pass over the points makes the sum that the gradients
//           of the logits need.
// Traffic   per point and D channels: four corners of value read (fused: twice), four corners of
//           grad_value added to by atomics (of four floats at once on compute capability 9.0 and
//           later).
// Registers sm_90, vectors: 64 to 91 (double 94 to 111), no spills, except 8 bytes of the half
//           kernel with given locations; one channel: 56 to 90 (double 76 to 115), no spills.
//           256 threads a block, no shared memory.
// Limits    those of check() in params.h. With float sums grad_value is not deterministic, because
//           the order of the atomics varies; with fixed-point sums (fixed_point.cuh) it is. The
//           other gradients have one writer and a fixed order of sums.
#pragma once

#include "msda/backward_choice.h"
#include "msda/fixed_point.cuh"
#include "msda/forward_general.cuh"
#include "msda/softmax.cuh"

namespace msda {

inline constexpr int kBackwardThreads = 256;

// One sample as its group sees it.
template <typename Real>
struct PointOfItem {
  Coordinate<Real> x, y;
  Real weight;
  Pair<Real> scale;  // pixels that one unit of the location or offset moves the sample by
  bool touches;      // whether it reads a cell
};

// Calls visit(level, point) for the points of an item in their order.
template <typename T, bool kFused, bool kAligned, typename Visit>
__device__ __forceinline__ void for_each_point(const Problem& problem,
                                               const ForwardArguments& arguments, int64_t item,
                                               const Softmax<Accumulate<T>>& softmax,
                                               const Visit& visit) {
  using Real = Accumulate<T>;
  const bool boxes = problem.locations == Locations::kReferenceBoxes;
  const int64_t query_index = item / problem.num_heads;
  const int64_t first_point = item * problem.total_points;
  Cursor<T> locations(arguments.sampling_locations, 2 * first_point,
                      problem.location_type != problem.value_type);
  Cursor<T> weights(arguments.attention_weights, first_point,
                    problem.weight_type != problem.value_type);
  for (int level_index = 0; level_index < static_cast<int>(problem.num_levels); ++level_index) {
    const Level level = read_level(arguments.spatial_shapes, arguments.level_start_index,
                                   problem.int64_shapes, level_index, problem.num_cells);
    const Real width = static_cast<Real>(level.width);
    const Real height = static_cast<Real>(level.height);
    const int num_points = problem.points_per_level[level_index];
    PointOfItem<Real> point{};
    point.scale = {kFused ? Real(1) : width, kFused ? Real(1) : height};
    Pair<Real> reference{};
    if constexpr (kFused) {
      Cursor<Real> cursor(arguments.reference_points,
                          (boxes ? 4 : 2) * (query_index * problem.num_levels + level_index), true);
      reference = cursor.template pair<kAligned>();
      if (boxes) {
        cursor.advance(2);
        const Pair<Real> size = cursor.template pair<kAligned>();
        point.scale = {pixels_per_offset(size.x, num_points, width),
                       pixels_per_offset(size.y, num_points, height)};
      }
    }
    for (int i = 0; i < num_points; ++i, locations.advance(2), weights.advance(1)) {
      const Pair<Real> location = locations.template pair<kAligned>();
      point.weight = weights.scalar();
      if constexpr (kFused) {
        point.weight = softmax(point.weight);
        const Pair<Real> offset =
            boxes ? Pair<Real>{location.x * point.scale.x, location.y * point.scale.y} : location;
        point.x = at_offset(reference.x, offset.x, width);
        point.y = at_offset(reference.y, offset.y, height);
      } else {
        point.x = at_location(location.x, width);
        point.y = at_location(location.y, height);
      }
      point.touches = level.valid && touches(point.x, width) && touches(point.y, height);
      visit(level, point);
    }
  }
}

template <typename T, int kVec, bool kFused, bool kFixed>
__global__ void __launch_bounds__(kBackwardThreads)
    backward_kernel(const __grid_constant__ Problem problem,
                    const __grid_constant__ BackwardArguments arguments,
                    const __grid_constant__ BackwardWork work, const int group_size) {
  using Real = Accumulate<T>;
  constexpr bool kAligned = kVec > 1;
  const ForwardArguments& forward = arguments.forward;
  const int64_t thread = static_cast<int64_t>(blockIdx.x) * kBackwardThreads + threadIdx.x;
  const int64_t items = problem.batch_size * problem.num_queries * problem.num_heads;
  // Lanes past the end repeat the last item, because shuffles need every lane.
  const bool writes = thread / group_size < items;
  const int64_t item = writes ? thread / group_size : items - 1;  // (n, q, m)
  const int lane = threadIdx.x % group_size;
  const int64_t query_index = item / problem.num_heads;
  const int64_t head = item - query_index * problem.num_heads;
  const int64_t batch = query_index / problem.num_queries;

  const bool wide_locations = problem.location_type != problem.value_type;
  const bool wide_weights = problem.weight_type != problem.value_type;
  const int64_t first_point = item * problem.total_points;
  Cursor<T, false> grad_locations(arguments.grad_sampling_locations, 2 * first_point,
                                  wide_locations);
  Cursor<T, false> grad_weights(arguments.grad_attention_weights, first_point, wide_weights);
  Real* grad_pixels = static_cast<Real*>(work.grad_pixels) + 2 * first_point;

  const int cell_stride = static_cast<int>(problem.num_heads * problem.head_dim);
  const int head_dim = static_cast<int>(problem.head_dim);
  const int64_t head_offset = batch * problem.num_cells * cell_stride + head * head_dim;
  const T* const value = static_cast<const T*>(forward.value);
  const T* const grad_output = static_cast<const T*>(arguments.grad_output) + item * head_dim;
  const auto at_corner = [&](const Level& level, int c) {
    return (c >= 2 ? static_cast<int64_t>(level.width) * cell_stride : 0) +
           (c % 2 ? cell_stride : 0);
  };

  Softmax<Real> softmax;
  Real weighted_sum = 0;  // of the gradients of the weights
  if constexpr (kFused) {
    softmax = make_softmax(Cursor<T>(forward.attention_weights, first_point, wide_weights),
                           problem.total_points, lane, group_size);
    for_each_point<T, kFused, kAligned>(
        problem, forward, item, softmax, [&](const Level& level, const PointOfItem<Real>& point) {
          if (!point.touches) return;
          const Corners<Real> corner = corners(point.x, point.y, level);
          for (int channel = lane * kVec; channel < head_dim; channel += group_size * kVec) {
            const Vector<T, kVec> grad = load<T, kVec>(grad_output + channel);
            const int64_t top_left =
                head_offset + (static_cast<int64_t>(level.start) + corner.top_left) * cell_stride +
                channel;
            Real sample = 0;
#pragma unroll
            for (int c = 0; c < 4; ++c) {
              const Vector<T, kVec> cell =
                  load_if<T, kVec>(corner.inside[c], value + top_left + at_corner(level, c));
              Real product = 0;
#pragma unroll
              for (int k = 0; k < kVec; ++k) product += grad[k] * cell[k];
              if (corner.inside[c]) sample += corner.weight[c] * product;
            }
            weighted_sum += point.weight * sample;
          }
        });
    weighted_sum = sum_over_group(weighted_sum, group_size);
  }

  const FixedPoint<Real> fixed(
      work, kFixed ? __ldg(work.exponents + batch * problem.num_heads + head) : kExponentBias);
  for_each_point<T, kFused, kAligned>(
      problem, forward, item, softmax, [&](const Level& level, const PointOfItem<Real>& point) {
        Real grad_weight = 0;
        Real grad_x = 0;
        Real grad_y = 0;
        if (point.touches) {
          const Corners<Real> corner = corners(point.x, point.y, level);
          const Real fx = point.x.fraction;
          const Real fy = point.y.fraction;
          // The derivatives of the corners' weights.
          const Real along_x[4] = {fy - 1, 1 - fy, -fy, fy};
          const Real along_y[4] = {fx - 1, -fx, 1 - fx, fx};
          for (int channel = lane * kVec; channel < head_dim; channel += group_size * kVec) {
            const Vector<T, kVec> grad = load<T, kVec>(grad_output + channel);
            const int64_t top_left =
                head_offset + (static_cast<int64_t>(level.start) + corner.top_left) * cell_stride +
                channel;
            Vector<T, kVec> cell[4];
#pragma unroll
            for (int c = 0; c < 4; ++c) {
              cell[c] = load_if<T, kVec>(corner.inside[c], value + top_left + at_corner(level, c));
            }
#pragma unroll
            for (int c = 0; c < 4; ++c) {
              const int64_t offset = top_left + at_corner(level, c);
              const Real corner_weight = point.weight * corner.weight[c];
              Real product = 0;
              Real grad_cell[kVec];
#pragma unroll
              for (int k = 0; k < kVec; ++k) {
                product += grad[k] * cell[c][k];
                grad_cell[k] = corner_weight * grad[k];
              }
              if (writes && corner.inside[c]) {
                Real* const grad_value = static_cast<Real*>(arguments.grad_value);
                if constexpr (kFixed) {
#pragma unroll
                  for (int k = 0; k < kVec; ++k) {
                    fixed.add(work.sums, grad_value, offset + k, grad_cell[k]);
                  }
                } else {
                  atomic_add<Real, kVec>(grad_value + offset, grad_cell);
                }
              }
              // A cell outside is not sampled: an infinite grad_output times zero would be NaN.
              if (!corner.inside[c]) product = 0;
              grad_weight += corner.weight[c] * product;
              grad_x += along_x[c] * product;
              grad_y += along_y[c] * product;
            }
          }
        }
        grad_weight = sum_over_group(grad_weight, group_size);
        grad_x = sum_over_group(grad_x, group_size);
        grad_y = sum_over_group(grad_y, group_size);
        if (writes && lane == 0) {
          // A sample that reads no cell has a gradient of zero, even with a weight of NaN.
          const Pair<Real> pixel = {point.touches ? point.weight * grad_x : Real(0),
                                    point.touches ? point.weight * grad_y : Real(0)};
          grad_locations.store(0, point.touches ? pixel.x * point.scale.x : Real(0));
          grad_locations.store(1, point.touches ? pixel.y * point.scale.y : Real(0));
          grad_weights.store(0, kFused ? point.weight * (grad_weight - weighted_sum) : grad_weight);
          if (kFused && work.grad_pixels != nullptr) {
            grad_pixels[0] = pixel.x;
            grad_pixels[1] = pixel.y;
          }
        }
        grad_locations.advance(2);
        grad_weights.advance(1);
        grad_pixels += 2;
      });
}

template <typename T, int kVec, bool kFused, bool kFixed>
cudaError_t launch_backward(const Problem& problem, const BackwardArguments& arguments,
                            const BackwardWork& work, cudaStream_t stream) {
  int group_size = 1;
  while (group_size < 32 && group_size * kVec < problem.head_dim) group_size *= 2;
  const int64_t threads = problem.batch_size * problem.num_queries * problem.num_heads * group_size;
  return launch_linear(backward_kernel<T, kVec, kFused, kFixed>, threads, kBackwardThreads, stream,
                       problem, arguments, work, group_size);
}

template <typename T>
cudaError_t launch_backward(const Problem& problem, const BackwardArguments& arguments,
                            const BackwardWork& work, cudaStream_t stream) {
  // 16 bytes of grad_value a lane, so that the atomics of neighbouring lanes are adjacent.
  constexpr int kVec = 16 / sizeof(Accumulate<T>);
  const bool vectors = can_vectorise<T>(problem, arguments.forward) &&
                       aligned(arguments.grad_output, 16) && aligned(arguments.grad_value, 16);
  return with_constant<0, 1>(problem.locations != Locations::kGiven, [&](auto fused) {
    constexpr bool kFused = decltype(fused)::value != 0;
    // One channel a lane, so that neighbouring lanes add to neighbouring integers.
    if (arguments.deterministic) {
      return launch_backward<T, 1, kFused, true>(problem, arguments, work, stream);
    }
    return vectors ? launch_backward<T, kVec, kFused, false>(problem, arguments, work, stream)
                   : launch_backward<T, 1, kFused, false>(problem, arguments, work, stream);
  });
}

}  // namespace msda
