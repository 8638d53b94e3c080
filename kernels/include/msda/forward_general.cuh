// Forward of multi-scale deformable attention, with given locations and fused: "general" of
// forward_choice.h, which runs any problem. The best kernel to read first.
//
// Problem   out[n,q,m,:] = sum over levels l and points p of
//           weight[n,q,m,l,p] * bilinear(value of level l, head m; location[n,q,m,l,p])
//           (inner sum of eq. 3, Deformable DETR, arXiv:2010.04159). Cells outside a level count 0.
//           Fused: weight is the softmax of the logits over all levels and points, and the location
//           comes from a reference point and an offset (params.h).
// Layout    value [N,S,M,D] and out [N,Q,M,D], stored as float, half, bfloat16 or double; or value
//           as int8, and out as half or bfloat16. Coordinates, weights and sums are float (double
//           with double values).
// Threads   One thread makes kVec consecutive channels of one (n,q,m): 16 bytes where D and the
//           addresses allow, else one channel, as with int8 values. Thread t writes the t-th vector
//           of the output, so stores coalesce, and the lanes of a head read consecutive parts of
//           the same cells. All lanes of a head compute the same coordinates from broadcast loads.
//           The fused kernel reads the logits twice: for their maximum, and for the weights.
// Traffic   per output vector and point: four corners of 16 bytes, one location, one weight. Each
//           cell is read by many samples; L2 serves what misses L1.
// Registers sm_90, 16-byte vectors: float 48 to 60, 16-bit types 59 to 64, double 60 to 76, no
//           spills, except 8 bytes of the float kernel with given locations; one channel: 40 to 64.
//           256 threads a block, no shared memory.
// Limits    those of check() in params.h. Deterministic: no atomics, a fixed order of sums.
#pragma once

#include "msda/bilinear.h"
#include "msda/cuda_launch.cuh"
#include "msda/forward_choice.h"
#include "msda/vector.cuh"

namespace msda {

inline constexpr int kForwardThreads = 256;

// V is the type of value, T that of the other tensors.
template <typename T, int kVec, Locations kLocations, typename V = T>
__global__ void __launch_bounds__(kForwardThreads)
    forward_kernel(const __grid_constant__ Problem problem,
                   const __grid_constant__ ForwardArguments arguments) {
  using Real = Accumulate<T>;
  constexpr bool kAligned = kVec > 1;
  const int64_t vectors_per_head = problem.head_dim / kVec;
  const int64_t thread = static_cast<int64_t>(blockIdx.x) * kForwardThreads + threadIdx.x;
  const int64_t item = thread / vectors_per_head;        // (n, q, m)
  const int64_t query_index = item / problem.num_heads;  // (n, q)
  if (query_index >= problem.batch_size * problem.num_queries) return;
  const int64_t head = item - query_index * problem.num_heads;
  const int64_t batch = query_index / problem.num_queries;
  const int64_t channel = (thread - item * vectors_per_head) * kVec;

  const int64_t first_point = head * problem.total_points;  // of the query's
  Cursor<T> location_cursor(arguments.sampling_locations,
                            query_index * problem.location_stride + 2 * first_point,
                            problem.location_type != problem.value_type);
  Cursor<T> weight_cursor(arguments.attention_weights,
                          query_index * problem.weight_stride + first_point,
                          problem.weight_type != problem.value_type);

  // The softmax: the maximum of the logits here, the exponentials where they are used, and one
  // division at the end.
  Real largest = 0;
  if constexpr (kLocations != Locations::kGiven) {
    largest = -INFINITY;
    Cursor<T> logit_cursor = weight_cursor;
    for (int64_t point = 0; point < problem.total_points; ++point, logit_cursor.advance(1)) {
      largest = max(largest, logit_cursor.scalar());
    }
  }
  Real total_weight = 0;

  const int cell_stride = static_cast<int>(problem.num_heads * problem.head_dim);
  const V* const head_value = static_cast<const V*>(arguments.value) +
                              batch * problem.num_cells * cell_stride + head * problem.head_dim +
                              channel;

  Real sums[kVec] = {};
  for (int level_index = 0; level_index < static_cast<int>(problem.num_levels); ++level_index) {
    const Level level = read_level(arguments.spatial_shapes, arguments.level_start_index,
                                   problem.int64_shapes, level_index, problem.num_cells);
    const Real width = static_cast<Real>(level.width);
    const Real height = static_cast<Real>(level.height);
    const V* const level_value = head_value + static_cast<int64_t>(level.start) * cell_stride;
    const int64_t line_stride = static_cast<int64_t>(level.width) * cell_stride;
    const int num_points = problem.points_per_level[level_index];

    Pair<Real> reference{};
    Pair<Real> scale{};  // pixels per offset
    if constexpr (kLocations == Locations::kReferencePoints) {
      Cursor<Real> cursor(arguments.reference_points,
                          2 * (query_index * problem.num_levels + level_index), true);
      reference = cursor.template pair<kAligned>();
    } else if constexpr (kLocations == Locations::kReferenceBoxes) {
      Cursor<Real> cursor(arguments.reference_points,
                          4 * (query_index * problem.num_levels + level_index), true);
      reference = cursor.template pair<kAligned>();
      cursor.advance(2);
      const Pair<Real> size = cursor.template pair<kAligned>();
      scale = {pixels_per_offset(size.x, num_points, width),
               pixels_per_offset(size.y, num_points, height)};
    }

    for (int i = 0; i < num_points; ++i, location_cursor.advance(2), weight_cursor.advance(1)) {
      Real weight = weight_cursor.scalar();
      const Pair<Real> location = location_cursor.template pair<kAligned>();
      Coordinate<Real> x, y;
      if constexpr (kLocations == Locations::kGiven) {
        x = at_location(location.x, width);
        y = at_location(location.y, height);
      } else {
        weight = exp(weight - largest);
        total_weight += weight;
        if constexpr (kLocations == Locations::kReferencePoints) {
          x = at_offset(reference.x, location.x, width);
          y = at_offset(reference.y, location.y, height);
        } else {
          x = at_offset(reference.x, location.x * scale.x, width);
          y = at_offset(reference.y, location.y * scale.y, height);
        }
      }
      if (!level.valid || !touches(x, width) || !touches(y, height)) continue;

      const Corners<Real> corner = corners(x, y, level);
      const V* const top_left = level_value + static_cast<int64_t>(corner.top_left) * cell_stride;
      // All four loads are in flight before the first is used.
      Vector<V, kVec> value[4];
#pragma unroll
      for (int c = 0; c < 4; ++c) {
        value[c] = load_if<V, kVec>(
            corner.inside[c], top_left + (c >= 2 ? line_stride : 0) + (c % 2 ? cell_stride : 0));
      }
#pragma unroll
      for (int c = 0; c < 4; ++c) {
        const Real corner_weight = weight * corner.weight[c];
#pragma unroll
        for (int k = 0; k < kVec; ++k) sums[k] += corner_weight * value[c][k];
      }
    }
  }

  if constexpr (kLocations != Locations::kGiven) {
    Real scale = Real(1) / total_weight;
    if constexpr (!std::is_same_v<V, T>) scale *= problem.value_scale;
#pragma unroll
    for (int k = 0; k < kVec; ++k) sums[k] *= scale;
  }
  store<T, kVec>(static_cast<T*>(arguments.output) + item * problem.head_dim + channel, sums);
}

// Whether a thread can read 16 bytes of channels, and an (x, y) pair, at once.
template <typename T>
bool can_vectorise(const Problem& problem, const ForwardArguments& arguments) {
  using Real = Accumulate<T>;
  return problem.head_dim % static_cast<int64_t>(16 / sizeof(T)) == 0 &&
         aligned(arguments.value, 16) &&
         aligned_queries(arguments.sampling_locations, problem.location_stride,
                         problem.location_type, 2 * size_of(problem.location_type)) &&
         aligned(arguments.reference_points, 2 * sizeof(Real));
}

template <typename T>
cudaError_t launch_forward_int8(const Problem& problem, const ForwardArguments& arguments,
                                cudaStream_t stream) {
  const int64_t channels =
      problem.batch_size * problem.num_queries * problem.num_heads * problem.head_dim;
  return with_constant<1, 2>(static_cast<int>(problem.locations), [&](auto locations) {
    constexpr auto kLocations = static_cast<Locations>(decltype(locations)::value);
    return launch_linear(forward_kernel<T, 1, kLocations, int8_t>, channels, kForwardThreads,
                         stream, problem, arguments);
  });
}

template <typename T>
cudaError_t launch_forward(const Problem& problem, const ForwardArguments& arguments,
                           cudaStream_t stream) {
  if constexpr (sizeof(T) == 2) {
    if (problem.int8_value) return launch_forward_int8<T>(problem, arguments, stream);
  }
  constexpr int kVec = 16 / sizeof(T);
  const bool vectors = can_vectorise<T>(problem, arguments) && aligned(arguments.output, 16);
  const int64_t channels =
      problem.batch_size * problem.num_queries * problem.num_heads * problem.head_dim;
  return with_constant<1, kVec>(vectors ? kVec : 1, [&](auto vec) {
    return with_constant<0, 1, 2>(static_cast<int>(problem.locations), [&](auto locations) {
      constexpr auto kLocations = static_cast<Locations>(decltype(locations)::value);
      return launch_linear(forward_kernel<T, decltype(vec)::value, kLocations>,
                           channels / decltype(vec)::value, kForwardThreads, stream, problem,
                           arguments);
    });
  });
}

}  // namespace msda
