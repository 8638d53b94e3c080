// The contract between the kernels and their callers: sizes, types and pointers of one problem.
// Plain C++. The Torch operator, the TensorRT plugin and the tests fill these structs, and check()
// gives all of them the same messages.
//
// Shape letters, everywhere in this repository:
//   N  batch     S  cells of all levels, sum of H_l * W_l
//   M  heads     D  channels of a head
//   Q  queries   L  levels
//   P  points of a level
//   K  points of all levels, sum of P_l
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <string>

namespace msda {

// points_per_level is a kernel argument; this bounds its length.
inline constexpr int64_t kMaxLevels = 32;

enum class DataType : int32_t { kFloat32, kFloat16, kBFloat16, kFloat64 };

// How the sampling locations are given.
enum class Locations : int32_t {
  kGiven,            // sampling_locations and attention_weights
  kReferencePoints,  // [N,Q,L,2]: (x, y) + offset / (W, H); softmax over K inside
  kReferenceBoxes,   // [N,Q,L,4]: (cx, cy) + offset / P * (w, h) * 0.5; softmax over K inside
};

struct Problem {
  int64_t batch_size = 0;    // N
  int64_t num_cells = 0;     // S
  int64_t num_heads = 0;     // M
  int64_t head_dim = 0;      // D
  int64_t num_levels = 0;    // L
  int64_t num_queries = 0;   // Q
  int64_t total_points = 0;  // K
  int32_t points_per_level[kMaxLevels] = {};
  Locations locations = Locations::kGiven;
  DataType value_type = DataType::kFloat32;     // value and output
  DataType location_type = DataType::kFloat32;  // sampling_locations or sampling_offsets
  DataType weight_type = DataType::kFloat32;    // attention_weights or attention_logits
  bool int64_shapes = true;  // spatial_shapes, level_start_index: int64, else int32
  // Elements from a query (n,q) to the next in sampling_locations and in attention_weights. Strides
  // are larger than a query's elements where both are columns of a wider tensor, for example of one
  // projection that makes offsets and logits.
  int64_t location_stride = 0;
  int64_t weight_stride = 0;
  // Whether the value is int8, and stands for its numbers times value_scale. value_type is then
  // that of the output alone.
  bool int8_value = false;
  float value_scale = 1;

  bool empty() const {
    return batch_size == 0 || num_queries == 0 || num_heads == 0 || head_dim == 0;
  }

  // A query's elements in attention_weights, and half of those in sampling_locations.
  int64_t points_of_query() const { return num_heads * total_points; }
  void set_dense() {
    location_stride = 2 * points_of_query();
    weight_stride = points_of_query();
  }
  bool dense() const {
    return location_stride == 2 * points_of_query() && weight_stride == points_of_query();
  }
};

// Tensors are contiguous, except for the strides of a Problem. Pointers need no more alignment than
// their elements.
struct ForwardArguments {
  const void* value = nullptr;              // [N, S, M, D]
  const void* spatial_shapes = nullptr;     // [L, 2] = (H, W)
  const void* level_start_index = nullptr;  // [L]
  // [N, Q, L, 2 or 4] float (double with double values); null with given locations.
  const void* reference_points = nullptr;
  const void* sampling_locations = nullptr;  // [N, Q, M, K, 2] = (x, y): locations, or offsets
  const void* attention_weights = nullptr;   // [N, Q, M, K]: weights, or logits
  void* output = nullptr;                    // [N, Q, M, D]
};

// The gradients of attention (Locations::kGiven) or of fused_attention (reference points, boxes).
struct BackwardArguments {
  ForwardArguments forward;           // output is not read
  const void* grad_output = nullptr;  // [N, Q, M, D], value_type
  // [N, S, M, D] float (double with double values); zeros, to which the kernels add.
  void* grad_value = nullptr;
  // [N, Q, M, K, 2], location_type: of the locations or the offsets.
  void* grad_sampling_locations = nullptr;
  // [N, Q, M, K], weight_type: of the weights or the logits.
  void* grad_attention_weights = nullptr;
  // [N, Q, L, 2 or 4], the type of reference_points. Null: not wanted.
  void* grad_reference_points = nullptr;
  // Whether grad_value is to be equal to the last bit in every run. The other gradients always are.
  bool deterministic = false;
  // Zeros, aligned to 16 bytes; backward_work() tells the size (backward_work.h).
  void* work = nullptr;
};

inline const char* name(DataType type) {
  switch (type) {
    case DataType::kFloat32:
      return "float32";
    case DataType::kFloat16:
      return "float16";
    case DataType::kBFloat16:
      return "bfloat16";
    case DataType::kFloat64:
      return "float64";
  }
  return "unknown";
}

// Bytes of an element.
inline size_t size_of(DataType type) {
  switch (type) {
    case DataType::kFloat16:
    case DataType::kBFloat16:
      return 2;
    case DataType::kFloat32:
      return 4;
    case DataType::kFloat64:
      return 8;
  }
  return 0;
}

// Returns one sentence about what is wrong with a quantisation scale, or an empty string.
inline std::string check_scale(const char* name, float scale) {
  if (scale > 0 && std::isfinite(scale) && std::isfinite(1 / scale)) return {};
  return name + (": should be a number above 0 that is finite, as its reciprocal, got " +
                 std::to_string(scale));
}

// Returns one sentence about what is wrong with the problem, or an empty string.
inline std::string check(const Problem& problem) {
  const auto got = [](const char* what, int64_t expected, int64_t actual) {
    return std::string(what) + " should be " + std::to_string(expected) + ", got " +
           std::to_string(actual);
  };
  if (problem.int8_value) {
    if (problem.locations == Locations::kGiven || size_of(problem.value_type) != 2 ||
        problem.location_type != problem.value_type || problem.weight_type != problem.value_type) {
      return "value: should be int8 only with sampling_offsets and attention_logits that are both "
             "float16 or both bfloat16";
    }
    if (!(problem.value_scale > 0 && std::isfinite(problem.value_scale))) {
      return "value_scale: should be a finite number above 0, got " +
             std::to_string(problem.value_scale);
    }
  }
  const auto accumulates = [&](DataType type) {
    return type == problem.value_type ||
           (type == DataType::kFloat32 && problem.value_type != DataType::kFloat64);
  };
  if (problem.num_levels < 1 || problem.num_levels > kMaxLevels) {
    return "spatial_shapes: the number of levels should be 1 to " + std::to_string(kMaxLevels) +
           ", got " + std::to_string(problem.num_levels);
  }
  int64_t total = 0;
  for (int64_t level = 0; level < problem.num_levels; ++level) {
    if (problem.points_per_level[level] < 0) {
      return "points_per_level: every number should be 0 or more, got " +
             std::to_string(problem.points_per_level[level]) + " for level " +
             std::to_string(level);
    }
    total += problem.points_per_level[level];
  }
  if (total != problem.total_points) {
    return got("points_per_level: the sum over all levels", problem.total_points, total);
  }
  if (total < 1) return "points_per_level: at least one level should have a point, got none";
  // Cell indices and the distance between cells are 32-bit in the kernels; their product is 64-bit.
  constexpr int64_t kLimit = INT32_MAX;
  if (problem.num_cells > kLimit || problem.num_heads * problem.head_dim > kLimit) {
    return "value: S and M * D should each be below 2^31, got S=" +
           std::to_string(problem.num_cells) +
           ", M * D=" + std::to_string(problem.num_heads * problem.head_dim);
  }
  if (problem.location_stride < 2 * problem.points_of_query()) {
    return got("sampling_locations or sampling_offsets: the elements from a query to the next",
               2 * problem.points_of_query(), problem.location_stride);
  }
  if (problem.weight_stride < problem.points_of_query()) {
    return got("attention_weights or attention_logits: the elements from a query to the next",
               problem.points_of_query(), problem.weight_stride);
  }
  if (!accumulates(problem.location_type)) {
    return std::string("sampling_locations or sampling_offsets: the type should be ") +
           name(problem.value_type) + " (the value's) or float32, got " +
           name(problem.location_type);
  }
  if (!accumulates(problem.weight_type)) {
    return std::string("attention_weights or attention_logits: the type should be ") +
           name(problem.value_type) + " (the value's) or float32, got " + name(problem.weight_type);
  }
  return {};
}

}  // namespace msda
