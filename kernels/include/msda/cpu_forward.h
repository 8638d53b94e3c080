// The operator on the CPU, with the arithmetic of the GPU (bilinear.h): for tests, exports and
// machines without a GPU. A caller with several threads splits the range of items among them.
//
// T is the value's type: float, double, or a 16-bit type that converts to and from float.
#pragma once

#include <algorithm>
#include <cmath>
#include <limits>
#include <type_traits>
#include <vector>

#include "msda/bilinear.h"
#include "msda/params.h"

namespace msda::cpu {

template <typename T>
using Accumulate = std::conditional_t<std::is_same_v<T, double>, double, float>;

// Reads and writes a tensor of either the value's type or the type of the sums.
template <typename T>
class Elements {
 public:
  using Real = Accumulate<T>;
  Elements(const void* data, DataType type, DataType value_type)
      : data_(const_cast<void*>(data)), widened_(type != value_type) {}
  Real get(int64_t index) const {
    return widened_ ? static_cast<const Real*>(data_)[index]
                    : static_cast<Real>(static_cast<const T*>(data_)[index]);
  }
  void set(int64_t index, Real x) const {
    if (widened_) {
      static_cast<Real*>(data_)[index] = x;
    } else {
      static_cast<T*>(data_)[index] = static_cast<T>(x);
    }
  }

 private:
  void* data_;
  bool widened_;
};

// Calls sample(k, weight, x, y, level) for each of the K points of one (n,q,m), also for points
// outside their level. item = (n * Q + q) * M + m. weight: after the softmax.
template <typename T, typename Sample>
void for_each_sample(const Problem& problem, const ForwardArguments& arguments, int64_t item,
                     const Sample& sample) {
  using Real = Accumulate<T>;
  const Elements<T> locations(arguments.sampling_locations, problem.location_type,
                              problem.value_type);
  const Elements<T> weights(arguments.attention_weights, problem.weight_type, problem.value_type);
  const Real* const references = static_cast<const Real*>(arguments.reference_points);
  const bool fused = problem.locations != Locations::kGiven;
  const int64_t query_index = item / problem.num_heads;
  const int64_t first_point = item % problem.num_heads * problem.total_points;  // of the query's
  const int64_t first_location = query_index * problem.location_stride + 2 * first_point;
  const int64_t first_weight = query_index * problem.weight_stride + first_point;

  Real largest = -std::numeric_limits<Real>::infinity();
  Real total_weight = 0;
  if (fused) {
    for (int64_t k = 0; k < problem.total_points; ++k) {
      largest = std::max(largest, weights.get(first_weight + k));
    }
    for (int64_t k = 0; k < problem.total_points; ++k) {
      total_weight += std::exp(weights.get(first_weight + k) - largest);
    }
  }

  int64_t k = 0;
  for (int64_t level_index = 0; level_index < problem.num_levels; ++level_index) {
    const Level level = read_level(arguments.spatial_shapes, arguments.level_start_index,
                                   problem.int64_shapes, level_index, problem.num_cells);
    const Real width = static_cast<Real>(level.width);
    const Real height = static_cast<Real>(level.height);
    const int64_t reference = query_index * problem.num_levels + level_index;
    const int32_t num_points = problem.points_per_level[level_index];
    for (int32_t i = 0; i < num_points; ++i, ++k) {
      const Real location_x = locations.get(first_location + 2 * k);
      const Real location_y = locations.get(first_location + 2 * k + 1);
      Real weight = weights.get(first_weight + k);
      if (fused) weight = std::exp(weight - largest) / total_weight;
      Coordinate<Real> x, y;
      switch (problem.locations) {
        case Locations::kGiven:
          x = at_location(location_x, width);
          y = at_location(location_y, height);
          break;
        case Locations::kReferencePoints:
          x = at_offset(references[2 * reference], location_x, width);
          y = at_offset(references[2 * reference + 1], location_y, height);
          break;
        case Locations::kReferenceBoxes: {
          const Real* const box = references + 4 * reference;
          x = at_offset(box[0], location_x * pixels_per_offset(box[2], num_points, width), width);
          y = at_offset(box[1], location_y * pixels_per_offset(box[3], num_points, height), height);
          break;
        }
      }
      sample(k, weight, x, y, level);
    }
  }
}

template <typename Real>
bool touches_level(const Level& level, Coordinate<Real> x, Coordinate<Real> y) {
  return level.valid && touches(x, static_cast<Real>(level.width)) &&
         touches(y, static_cast<Real>(level.height));
}

// Makes the output of the items first to last (exclusive) of the N * Q * M.
template <typename T>
void forward(const Problem& problem, const ForwardArguments& arguments, int64_t first,
             int64_t last) {
  using Real = Accumulate<T>;
  const int64_t cell_stride = problem.num_heads * problem.head_dim;
  std::vector<Real> sums(problem.head_dim);
  for (int64_t item = first; item < last; ++item) {
    const int64_t batch = item / problem.num_heads / problem.num_queries;
    const T* const head_value = static_cast<const T*>(arguments.value) +
                                batch * problem.num_cells * cell_stride +
                                item % problem.num_heads * problem.head_dim;
    std::fill(sums.begin(), sums.end(), Real(0));
    for_each_sample<T>(
        problem, arguments, item,
        [&](int64_t, Real weight, Coordinate<Real> x, Coordinate<Real> y, const Level& level) {
          if (!touches_level(level, x, y)) return;
          const Corners<Real> corner = corners(x, y, level);
          for (int c = 0; c < 4; ++c) {
            if (!corner.inside[c]) continue;
            const int64_t cell = static_cast<int64_t>(level.start) + corner.top_left +
                                 (c >= 2 ? level.width : 0) + c % 2;
            const T* const value = head_value + cell * cell_stride;
            const Real corner_weight = weight * corner.weight[c];
            for (int64_t d = 0; d < problem.head_dim; ++d) {
              sums[d] += corner_weight * static_cast<Real>(value[d]);
            }
          }
        });
    T* const output = static_cast<T*>(arguments.output) + item * problem.head_dim;
    for (int64_t d = 0; d < problem.head_dim; ++d) output[d] = static_cast<T>(sums[d]);
  }
}

}  // namespace msda::cpu
