// Gradients of the operator on the CPU, with given locations and fused: those of
// backward_general.cuh. A caller with several threads splits the range of heads among them, then
// that of queries.
#pragma once

#include "msda/backward_work.h"
#include "msda/cpu_forward.h"

namespace msda::cpu {

template <typename Real>
struct SampleGradient {
  Real weight;           // after the softmax
  Real grad_weight = 0;  // grad_output . sample
  Real pixel[2] = {};    // of the pixel coordinates (x, y)
};

// The gradients of one sample that touches its level; adds to grad_value. value and grad_value
// point to the head's first cell, grad_output to the item.
template <typename T, typename Real>
SampleGradient<Real> differentiate_sample(const Problem& problem, const T* value,
                                          const T* grad_output, Real* grad_value, Real weight,
                                          Coordinate<Real> x, Coordinate<Real> y,
                                          const Level& level) {
  const int64_t cell_stride = problem.num_heads * problem.head_dim;
  const Corners<Real> corner = corners(x, y, level);
  const Real along_x[4] = {y.fraction - 1, 1 - y.fraction, -y.fraction, y.fraction};
  const Real along_y[4] = {x.fraction - 1, -x.fraction, 1 - x.fraction, x.fraction};
  SampleGradient<Real> gradient{weight};
  for (int c = 0; c < 4; ++c) {
    if (!corner.inside[c]) continue;
    const int64_t cell =
        static_cast<int64_t>(level.start) + corner.top_left + (c >= 2 ? level.width : 0) + c % 2;
    const Real corner_weight = weight * corner.weight[c];
    Real product = 0;
    for (int64_t d = 0; d < problem.head_dim; ++d) {
      const Real grad = static_cast<Real>(grad_output[d]);
      product += grad * static_cast<Real>(value[cell * cell_stride + d]);
      grad_value[cell * cell_stride + d] += corner_weight * grad;
    }
    gradient.grad_weight += corner.weight[c] * product;
    gradient.pixel[0] += weight * along_x[c] * product;
    gradient.pixel[1] += weight * along_y[c] * product;
  }
  return gradient;
}

// Writes the gradients of one (n,q,m) from those of its K samples; those of the pixels to
// `grad_pixels`, unless it is null.
template <typename T, typename Real>
void write_gradients(const Problem& problem, const BackwardArguments& arguments, int64_t item,
                     const std::vector<SampleGradient<Real>>& samples, Real* grad_pixels) {
  const Elements<T> grad_locations(arguments.grad_sampling_locations, problem.location_type,
                                   problem.value_type);
  const Elements<T> grad_weights(arguments.grad_attention_weights, problem.weight_type,
                                 problem.value_type);
  const bool fused = problem.locations != Locations::kGiven;
  Real weighted_sum = 0;  // of the gradients of the weights
  if (fused) {
    for (const auto& sample : samples) weighted_sum += sample.weight * sample.grad_weight;
  }
  int64_t k = 0;
  for (int64_t level_index = 0; level_index < problem.num_levels; ++level_index) {
    const Level level =
        read_level(arguments.forward.spatial_shapes, arguments.forward.level_start_index,
                   problem.int64_shapes, level_index, problem.num_cells);
    const Real size[2] = {static_cast<Real>(level.width), static_cast<Real>(level.height)};
    const int32_t num_points = problem.points_per_level[level_index];
    for (int32_t i = 0; i < num_points; ++i, ++k) {
      const int64_t point = item * problem.total_points + k;
      const SampleGradient<Real>& sample = samples[k];
      for (int axis = 0; axis < 2; ++axis) {
        // The pixels that one unit of the location or offset moves the sample by.
        Real scale = size[axis];
        if (problem.locations == Locations::kReferencePoints) scale = 1;
        if (problem.locations == Locations::kReferenceBoxes) {
          const Real* const box = static_cast<const Real*>(arguments.forward.reference_points) +
                                  4 * (item / problem.num_heads * problem.num_levels + level_index);
          scale *= box[2 + axis] * (Real(0.5) / static_cast<Real>(num_points));
        }
        // A sample that reads no cell has a gradient of zero, even with an infinite box.
        const Real pixel = sample.pixel[axis];
        grad_locations.set(2 * point + axis, pixel == 0 ? Real(0) : pixel * scale);
        if (grad_pixels) grad_pixels[2 * point + axis] = pixel;
      }
      grad_weights.set(
          point, fused ? sample.weight * (sample.grad_weight - weighted_sum) : sample.grad_weight);
    }
  }
}

// Makes all gradients but that of the reference points, for heads first to last (exclusive) of the
// N * M. Each head's part of grad_value has one writer, so the order of sums is fixed. Writes the
// gradients of the pixels to the work memory, for reference_gradients().
template <typename T>
void gradients(const Problem& problem, const BackwardArguments& arguments, int64_t first,
               int64_t last) {
  using Real = Accumulate<T>;
  const int64_t cell_stride = problem.num_heads * problem.head_dim;
  Real* const grad_pixels = static_cast<Real*>(backward_work(problem, arguments).grad_pixels);
  std::vector<SampleGradient<Real>> samples(problem.total_points);
  for (int64_t head_index = first; head_index < last; ++head_index) {
    const int64_t batch = head_index / problem.num_heads;
    const int64_t head = head_index % problem.num_heads;
    const int64_t head_offset = batch * problem.num_cells * cell_stride + head * problem.head_dim;
    const T* const value = static_cast<const T*>(arguments.forward.value) + head_offset;
    Real* const grad_value = static_cast<Real*>(arguments.grad_value) + head_offset;
    for (int64_t query = 0; query < problem.num_queries; ++query) {
      const int64_t item = (batch * problem.num_queries + query) * problem.num_heads + head;
      const T* const grad_output =
          static_cast<const T*>(arguments.grad_output) + item * problem.head_dim;
      for_each_sample<T>(
          problem, arguments.forward, item,
          [&](int64_t k, Real weight, Coordinate<Real> x, Coordinate<Real> y, const Level& level) {
            samples[k] = touches_level(level, x, y)
                             ? differentiate_sample(problem, value, grad_output, grad_value, weight,
                                                    x, y, level)
                             : SampleGradient<Real>{weight};
          });
      write_gradients<T>(problem, arguments, item, samples, grad_pixels);
    }
  }
}

// Makes the gradient of the reference points, for queries first to last (exclusive) of the N * Q.
// The caller has run gradients() for all heads.
template <typename T>
void reference_gradients(const Problem& problem, const BackwardArguments& arguments, int64_t first,
                         int64_t last) {
  using Real = Accumulate<T>;
  const Elements<T> offsets(arguments.forward.sampling_locations, problem.location_type,
                            problem.value_type);
  const Real* const grad_pixels =
      static_cast<const Real*>(backward_work(problem, arguments).grad_pixels);
  const bool boxes = problem.locations == Locations::kReferenceBoxes;
  const int dimensions = boxes ? 4 : 2;
  for (int64_t query_index = first; query_index < last; ++query_index) {
    int64_t level_start = 0;
    for (int64_t level_index = 0; level_index < problem.num_levels; ++level_index) {
      const Level level =
          read_level(arguments.forward.spatial_shapes, arguments.forward.level_start_index,
                     problem.int64_shapes, level_index, problem.num_cells);
      const Real size[2] = {static_cast<Real>(level.width), static_cast<Real>(level.height)};
      const int32_t num_points = problem.points_per_level[level_index];
      Real sums[4] = {};  // of the centre and the size
      for (int64_t head = 0; head < problem.num_heads; ++head) {
        const int64_t start =
            (query_index * problem.num_heads + head) * problem.total_points + level_start;
        for (int64_t i = 2 * start; i < 2 * (start + num_points); ++i) {
          sums[i % 2] += grad_pixels[i];
          // A pixel without a gradient counts zero, even with an offset that is not finite.
          if (boxes && grad_pixels[i] != 0) sums[2 + i % 2] += grad_pixels[i] * offsets.get(i);
        }
      }
      Real* const gradient = static_cast<Real*>(arguments.grad_reference_points) +
                             (query_index * problem.num_levels + level_index) * dimensions;
      const Real half_per_point = Real(0.5) / static_cast<Real>(std::max(num_points, 1));
      for (int axis = 0; axis < 2; ++axis) {
        gradient[axis] = sums[axis] * size[axis];
        if (boxes) gradient[2 + axis] = sums[2 + axis] * half_per_point * size[axis];
      }
      level_start += num_points;
    }
  }
}

}  // namespace msda::cpu
