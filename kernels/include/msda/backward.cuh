// Backward of multi-scale deformable attention with given locations.
//
// Problem   for every sample: the gradient of its weight (grad_output . sample), of its location
//           (grad_output . change of the sample across a cell, times the level's size), and of the
//           four cells it read (grad_output times weight times bilinear weight, added up over all
//           samples).
// Layout    as forward.cuh. grad_value is float (double with double values) whatever the value's
//           type: thousands of samples may add to one cell, and 16-bit sums would lose them.
// Threads   a group of lanes, a power of two up to a warp, works on one (n,q,m); each lane takes
//           kVec channels at a time: 16 bytes of grad_value where D and the addresses allow, else
//           one channel. The three dot products of a point are summed over the group by shuffles;
//           its first lane writes them. Blocks of 256 threads, no shared memory.
// Traffic   per point and D channels: four corners of value read, four corners of grad_value added
//           to by atomics (of four floats at once on compute capability 9.0 and later).
// Limits    those of check() in params.h. Not deterministic: the order of the atomics varies.
#pragma once

#include "msda/forward.cuh"

namespace msda {

inline constexpr int kBackwardThreads = 256;
inline constexpr unsigned kWholeWarp = 0xffffffffu;

template <typename Real>
__device__ __forceinline__ Real sum_over_group(Real x, int group_size) {
  for (int distance = group_size / 2; distance > 0; distance /= 2) {
    x += __shfl_xor_sync(kWholeWarp, x, distance);
  }
  return x;
}

template <typename T, int kVec>
__global__ void __launch_bounds__(kBackwardThreads)
    backward_kernel(const __grid_constant__ Problem problem,
                    const __grid_constant__ BackwardArguments arguments, const int group_size) {
  using Real = typename Accumulate<T>::type;
  constexpr bool kAligned = kVec > 1;
  const ForwardArguments& forward = arguments.forward;
  const int64_t thread = static_cast<int64_t>(blockIdx.x) * kBackwardThreads + threadIdx.x;
  const int64_t items = problem.batch_size * problem.num_queries * problem.num_heads;
  // Lanes past the end repeat the last item without writing, for the shuffles need every lane.
  const bool writes = thread / group_size < items;
  const int64_t item = writes ? thread / group_size : items - 1;  // (n, q, m)
  const int lane = threadIdx.x % group_size;
  const int64_t query = item / problem.num_heads;
  const int64_t head = item - query * problem.num_heads;
  const int64_t batch = query / problem.num_queries;

  const bool wide_locations = problem.location_type != problem.value_type;
  const bool wide_weights = problem.weight_type != problem.value_type;
  const int64_t point = item * problem.total_points;
  Cursor<T> locations(forward.sampling_locations, 2 * point, wide_locations);
  Cursor<T> weights(forward.attention_weights, point, wide_weights);
  Cursor<T, false> grad_locations(arguments.grad_sampling_locations, 2 * point, wide_locations);
  Cursor<T, false> grad_weights(arguments.grad_attention_weights, point, wide_weights);

  const int cell_stride = static_cast<int>(problem.num_heads * problem.head_dim);
  const int head_dim = static_cast<int>(problem.head_dim);
  const int64_t head_offset = batch * problem.num_cells * cell_stride + head * head_dim;
  const T* const grad_output = static_cast<const T*>(arguments.grad_output) + item * head_dim;

  for (int level_index = 0; level_index < static_cast<int>(problem.num_levels); ++level_index) {
    const Level level = read_level(forward.spatial_shapes, forward.level_start_index,
                                   problem.int64_shapes, level_index, problem.num_cells);
    const Real width = static_cast<Real>(level.width);
    const Real height = static_cast<Real>(level.height);
    const int64_t level_offset = head_offset + static_cast<int64_t>(level.start) * cell_stride;
    const int64_t row_stride = static_cast<int64_t>(level.width) * cell_stride;

    for (int i = 0; i < problem.points_per_level[level_index]; ++i) {
      const Real weight = weights.scalar();
      const Pair<Real> location = locations.template pair<kAligned>();
      const Coordinate<Real> x = at_location(location.x, width);
      const Coordinate<Real> y = at_location(location.y, height);

      Real grad_weight = 0;
      Real grad_x = 0;
      Real grad_y = 0;
      if (level.valid && touches(x, width) && touches(y, height)) {
        const Corners<Real> corner = corners(x, y, level);
        // How each corner's weight changes with the coordinates.
        const Real along_x[4] = {y.fraction - 1, 1 - y.fraction, -y.fraction, y.fraction};
        const Real along_y[4] = {x.fraction - 1, -x.fraction, 1 - x.fraction, x.fraction};
        for (int channel = lane * kVec; channel < head_dim; channel += group_size * kVec) {
          const Vector<T, kVec> grad = load<T, kVec>(grad_output + channel);
          const int64_t top_left =
              level_offset + static_cast<int64_t>(corner.top_left) * cell_stride + channel;
          Vector<T, kVec> value[4];
#pragma unroll
          for (int c = 0; c < 4; ++c) {
            const int64_t offset = top_left + (c >= 2 ? row_stride : 0) + (c % 2 ? cell_stride : 0);
            value[c] =
                load_if<T, kVec>(corner.inside[c], static_cast<const T*>(forward.value) + offset);
          }
#pragma unroll
          for (int c = 0; c < 4; ++c) {
            const int64_t offset = top_left + (c >= 2 ? row_stride : 0) + (c % 2 ? cell_stride : 0);
            const Real scale = weight * corner.weight[c];
            Real product = 0;
            Real grad_value[kVec];
#pragma unroll
            for (int k = 0; k < kVec; ++k) {
              product += grad[k] * value[c][k];
              grad_value[k] = scale * grad[k];
            }
            if (writes && corner.inside[c]) {
              atomic_add<Real, kVec>(static_cast<Real*>(arguments.grad_value) + offset, grad_value);
            }
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
        grad_weights.store(0, grad_weight);
        grad_locations.store(0, weight * width * grad_x);
        grad_locations.store(1, weight * height * grad_y);
      }
      locations.advance(2);
      weights.advance(1);
      grad_locations.advance(2);
      grad_weights.advance(1);
    }
  }
}

template <typename T, int kVec>
cudaError_t launch_backward(const Problem& problem, const BackwardArguments& arguments,
                            cudaStream_t stream) {
  int group_size = 1;
  while (group_size < 32 && group_size * kVec < problem.head_dim) group_size *= 2;
  const int64_t threads = problem.batch_size * problem.num_queries * problem.num_heads * group_size;
  const int64_t blocks = (threads + kBackwardThreads - 1) / kBackwardThreads;
  if (blocks > INT32_MAX) return cudaErrorInvalidConfiguration;
  backward_kernel<T, kVec><<<static_cast<unsigned>(blocks), kBackwardThreads, 0, stream>>>(
      problem, arguments, group_size);
  return cudaGetLastError();
}

template <typename T>
cudaError_t launch_backward(const Problem& problem, const BackwardArguments& arguments,
                            cudaStream_t stream) {
  // 16 bytes of grad_value a lane, so that the atomics of neighbouring lanes are adjacent.
  constexpr int kVec = 16 / sizeof(typename Accumulate<T>::type);
  return can_vectorise<T>(problem, arguments.forward) && aligned(arguments.grad_output, 16) &&
                 aligned(arguments.grad_value, 16)
             ? launch_backward<T, kVec>(problem, arguments, stream)
             : launch_backward<T, 1>(problem, arguments, stream);
}

}  // namespace msda
