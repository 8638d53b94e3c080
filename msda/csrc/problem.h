// Converts Torch's tensors to the structs of msda/params.h, for binding.cpp.
#pragma once

#include <torch/csrc/stable/tensor.h>
#include <torch/headeronly/core/ScalarType.h>
#include <torch/headeronly/util/Exception.h>

#include <algorithm>
#include <cstdint>
#include <initializer_list>
#include <optional>
#include <string>
#include <vector>

#include "msda/feed_forward_params.h"
#include "msda/group_norm_params.h"
#include "msda/image_input_params.h"
#include "msda/linear_max_params.h"
#include "msda/linear_of_sum_params.h"
#include "msda/linear_params.h"
#include "msda/params.h"
#include "msda/quantized_feed_forward_params.h"
#include "msda/quantized_layer_norm_params.h"
#include "msda/quantized_linear_params.h"
#include "msda/top_k_params.h"
#include "msda/window_params.h"

namespace binding {

using torch::headeronly::ScalarType;
using torch::stable::Tensor;
using PointsPerLevel = std::optional<std::vector<int64_t>>;

inline std::string to_text(const std::vector<int64_t>& sizes) {
  std::string text;
  for (int64_t size : sizes) text += (text.empty() ? "" : ", ") + std::to_string(size);
  return "[" + text + "]";
}

inline std::string shape_of(const Tensor& tensor) {
  return to_text({tensor.sizes().begin(), tensor.sizes().end()});
}

inline void check_shape(const char* name, const Tensor& tensor,
                        const std::vector<int64_t>& expected) {
  const auto sizes = tensor.sizes();
  const bool same = std::equal(sizes.begin(), sizes.end(), expected.begin(), expected.end());
  STD_TORCH_CHECK(same, name, ": expected ", to_text(expected), ", got ", shape_of(tensor));
}

inline void check_device(const char* name, const Tensor& tensor, const Tensor& value,
                         const char* value_name = "value") {
  STD_TORCH_CHECK(tensor.device() == value.device(), name, ": expected a tensor on ", value_name,
                  "'s device");
}

inline msda::DataType data_type(const char* name, const Tensor& tensor) {
  switch (tensor.scalar_type()) {
    case ScalarType::Float:
      return msda::DataType::kFloat32;
    case ScalarType::Half:
      return msda::DataType::kFloat16;
    case ScalarType::BFloat16:
      return msda::DataType::kBFloat16;
    case ScalarType::Double:
      return msda::DataType::kFloat64;
    default:
      STD_TORCH_CHECK(false, name, ": expected float32, float16, bfloat16 or float64");
  }
  return {};
}

inline msda::EightBits eight_bits(const char* name, ScalarType type) {
  STD_TORCH_CHECK(type == ScalarType::Char || type == ScalarType::Float8_e4m3fn, name,
                  ": expected int8 or float8_e4m3fn");
  return type == ScalarType::Char ? msda::EightBits::kInt8 : msda::EightBits::kFloat8;
}

// Returns a problem that the kernels take; raises what msda::check() says of another.
template <class Problem>
const Problem& checked(const Problem& problem) {
  const std::string message = msda::check(problem);
  STD_TORCH_CHECK(message.empty(), message);
  return problem;
}

// Checks the tensors' shapes, types and devices, and returns a dense problem. Without reference
// points it is that of `attention`: points [N, Q, M, L, P, 2] and weights [N, Q, M, L, P], or
// [N, Q, M, K, 2] and [N, Q, M, K] with points_per_level. The logits of `fused_attention` are
// always [N, Q, M, K]. With a scale of int8 values it is that of `quantized_fused_attention`.
inline msda::Problem make_problem(const Tensor& value, const Tensor& spatial_shapes,
                                  const Tensor& level_start_index,
                                  const std::optional<Tensor>& reference_points,
                                  const Tensor& points, const Tensor& weights,
                                  const PointsPerLevel& points_per_level,
                                  std::optional<double> value_scale = std::nullopt) {
  const char* const points_name = reference_points ? "sampling_offsets" : "sampling_locations";
  const char* const weights_name = reference_points ? "attention_logits" : "attention_weights";
  STD_TORCH_CHECK(value.dim() == 4, "value: expected [N, S, M, D], got ", shape_of(value));
  STD_TORCH_CHECK(spatial_shapes.dim() == 2 && spatial_shapes.size(1) == 2,
                  "spatial_shapes: expected [L, 2], got ", shape_of(spatial_shapes));
  STD_TORCH_CHECK(points.dim() == (points_per_level ? 5 : 6), points_name, ": expected ",
                  points_per_level ? "[N, Q, M, sum(points_per_level), 2]" : "[N, Q, M, L, P, 2]",
                  ", got ", shape_of(points));
  check_device("spatial_shapes", spatial_shapes, value);
  check_device("level_start_index", level_start_index, value);
  check_device(points_name, points, value);
  check_device(weights_name, weights, value);

  msda::Problem problem;
  problem.batch_size = value.size(0);
  problem.num_cells = value.size(1);
  problem.num_heads = value.size(2);
  problem.head_dim = value.size(3);
  problem.num_levels = spatial_shapes.size(0);
  problem.num_queries = points.size(1);
  if (value_scale) {
    STD_TORCH_CHECK(value.scalar_type() == ScalarType::Char, "value: expected int8");
    problem.int8_value = true;
    problem.value_scale = static_cast<float>(*value_scale);
  }
  problem.value_type = value_scale ? data_type(points_name, points) : data_type("value", value);
  problem.location_type = data_type(points_name, points);
  problem.weight_type = data_type(weights_name, weights);
  problem.int64_shapes = spatial_shapes.scalar_type() == ScalarType::Long;
  STD_TORCH_CHECK(problem.int64_shapes || spatial_shapes.scalar_type() == ScalarType::Int,
                  "spatial_shapes: expected int32 or int64");
  STD_TORCH_CHECK(level_start_index.scalar_type() == spatial_shapes.scalar_type(),
                  "level_start_index: expected the type of spatial_shapes");

  const int64_t levels = problem.num_levels;
  STD_TORCH_CHECK(levels <= msda::kMaxLevels, "spatial_shapes: expected at most ", msda::kMaxLevels,
                  " levels, got ", levels);
  if (points_per_level) {
    STD_TORCH_CHECK(static_cast<int64_t>(points_per_level->size()) == levels,
                    "points_per_level: expected ", levels, " numbers, got ",
                    points_per_level->size());
    problem.total_points = points.size(3);
    for (int64_t i = 0; i < levels; ++i) {
      const int64_t count = (*points_per_level)[i];
      STD_TORCH_CHECK(count >= 0 && count <= INT32_MAX,
                      "points_per_level: expected 0 or more, got ", count);
      problem.points_per_level[i] = static_cast<int32_t>(count);
    }
  } else {
    problem.total_points = levels * points.size(4);
    for (int64_t i = 0; i < levels; ++i) {
      problem.points_per_level[i] = static_cast<int32_t>(points.size(4));
    }
  }
  problem.set_dense();
  const std::vector<int64_t> items = {problem.batch_size, problem.num_queries, problem.num_heads};
  const auto with = [&](std::initializer_list<int64_t> last) {
    std::vector<int64_t> shape = items;
    shape.insert(shape.end(), last);
    return shape;
  };
  const bool ragged = points_per_level.has_value();
  check_shape("level_start_index", level_start_index, {levels});
  check_shape(points_name, points,
              ragged ? with({problem.total_points, 2}) : with({levels, points.size(4), 2}));
  check_shape(
      weights_name, weights,
      ragged || reference_points ? with({problem.total_points}) : with({levels, points.size(4)}));
  if (reference_points) {
    check_device("reference_points", *reference_points, value);
    const bool boxes = reference_points->dim() == 4 && reference_points->size(3) == 4;
    check_shape("reference_points", *reference_points,
                {problem.batch_size, problem.num_queries, levels, boxes ? 4 : 2});
    const bool is_double = problem.value_type == msda::DataType::kFloat64;
    STD_TORCH_CHECK(
        reference_points->scalar_type() == (is_double ? ScalarType::Double : ScalarType::Float),
        "reference_points: expected float32 (float64 with a float64 value)");
    problem.locations =
        boxes ? msda::Locations::kReferenceBoxes : msda::Locations::kReferencePoints;
  }
  return checked(problem);
}

// Checks that a tensor has the device and type of another.
inline void check_like(const char* name, const Tensor& tensor, const char* other_name,
                       const Tensor& other) {
  check_device(name, tensor, other, other_name);
  STD_TORCH_CHECK(tensor.scalar_type() == other.scalar_type(), name, ": expected the type of ",
                  other_name);
}

// Checks the tensors of window attention, and returns the problem.
inline msda::WindowProblem make_window_problem(const Tensor& qkv, const Tensor& bias,
                                               const std::optional<Tensor>& padding,
                                               int64_t window_size, int64_t shift,
                                               std::optional<double> output_scale) {
  STD_TORCH_CHECK(qkv.dim() == 4, "qkv: expected [N, H, W, 3 * C], got ", shape_of(qkv));
  STD_TORCH_CHECK(window_size >= 1 && window_size <= 4096, "window_size: expected 1 to 4096, got ",
                  window_size);
  const int64_t cells = window_size * window_size;
  const int64_t heads = bias.dim() == 3 ? bias.size(0) : 0;
  check_shape("bias", bias, {heads, cells, cells});
  STD_TORCH_CHECK(heads > 0 && qkv.size(3) % (3 * heads) == 0,
                  "qkv: expected [N, H, W, 3 * C] with C a multiple of the ", heads,
                  " heads of bias, got ", shape_of(qkv));
  check_like("bias", bias, "qkv", qkv);
  if (padding) {
    check_shape("padding", *padding, {qkv.size(3)});
    check_like("padding", *padding, "qkv", qkv);
  }
  msda::WindowProblem problem{
      qkv.size(0), qkv.size(1), qkv.size(2),          heads, qkv.size(3) / (3 * heads),
      window_size, shift,       data_type("qkv", qkv)};
  if (output_scale) {
    problem.output_scale = static_cast<float>(*output_scale);
    STD_TORCH_CHECK(problem.quantized_output(), "output_scale: should be a number above 0, got 0");
  }
  return checked(problem);
}

// Checks the tensors of group normalisation, a level in each, and returns the problem. `in_lists`:
// whether the caller gave lists, for the messages.
inline msda::GroupNormProblem make_group_norm_problem(const std::vector<Tensor>& levels,
                                                      const std::vector<Tensor>& weights,
                                                      const std::vector<Tensor>& biases,
                                                      int64_t num_groups, double eps,
                                                      std::optional<double> next_scale,
                                                      bool in_lists) {
  const size_t count = levels.size();
  STD_TORCH_CHECK(count >= 1 && count <= msda::kMostNormLevels, "levels: expected 1 to ",
                  msda::kMostNormLevels, " tensors, got ", count);
  STD_TORCH_CHECK(weights.size() == count && biases.size() == count, "weights, biases: expected ",
                  count, " tensors as levels, got ", weights.size(), " and ", biases.size());
  msda::GroupNormProblem problem;
  problem.num_levels = static_cast<int64_t>(count);
  problem.num_groups = num_groups;
  problem.eps = eps;
  for (size_t i = 0; i < count; ++i) {
    const auto name_of = [&](const char* list, const char* single) {
      return in_lists ? std::string(list) + "[" + std::to_string(i) + "]" : std::string(single);
    };
    const std::string name = name_of("levels", "x");
    const Tensor& x = levels[i];
    STD_TORCH_CHECK(x.dim() == 3 || (x.dim() == 4 && !in_lists), name, ": expected ",
                    in_lists ? "" : "[N, H, W, C] or ", "[N, S, C], got ", shape_of(x));
    if (i == 0) {
      problem.batch_size = x.size(0);
      problem.channels = x.size(x.dim() - 1);
      problem.type = data_type(name.c_str(), x);
    } else {
      check_shape(name.c_str(), x, {problem.batch_size, x.size(1), problem.channels});
      check_like(name.c_str(), x, "levels[0]", levels[0]);
    }
    problem.cells[i] = x.dim() == 4 ? x.size(1) * x.size(2) : x.size(1);
    const std::string weight = name_of("weights", "weight"), bias = name_of("biases", "bias");
    check_shape(weight.c_str(), weights[i], {problem.channels});
    check_like(weight.c_str(), weights[i], name.c_str(), x);
    check_shape(bias.c_str(), biases[i], {problem.channels});
    check_like(bias.c_str(), biases[i], name.c_str(), x);
  }
  if (next_scale) {
    problem.next_scale = static_cast<float>(*next_scale);
    STD_TORCH_CHECK(problem.next_scale != 0, "next_scale: should be a number above 0, got 0");
  }
  return checked(problem);
}

inline msda::Activation read_activation(const std::string& activation) {
  STD_TORCH_CHECK(activation == "none" || activation == "gelu" || activation == "relu",
                  "activation: expected one of none, gelu, relu, got '", activation, "'");
  return activation == "gelu"   ? msda::Activation::kGelu
         : activation == "relu" ? msda::Activation::kRelu
                                : msda::Activation::kNone;
}

// Checks x [..., K], weight [N, K] of x's type, and the shapes of bias [N], residual [..., N] and
// mask [..., 1]. Returns a LinearProblem or a QuantizedLinearProblem with their sizes.
template <class Problem>
Problem make_layer(const Tensor& x, const Tensor& weight, const std::optional<Tensor>& bias,
                   const std::optional<Tensor>& residual, const std::optional<Tensor>& mask,
                   const std::string& activation) {
  STD_TORCH_CHECK(x.dim() >= 1, "x: expected [..., K], got a tensor without dimensions");
  STD_TORCH_CHECK(weight.dim() == 2, "weight: expected [N, K], got ", shape_of(weight));
  Problem problem{1, x.size(x.dim() - 1), weight.size(0)};
  std::vector<int64_t> shape(x.sizes().begin(), x.sizes().end());
  shape.back() = problem.outputs;
  for (int64_t i = 0; i + 1 < x.dim(); ++i) problem.rows *= x.size(i);
  check_shape("weight", weight, {problem.outputs, problem.inputs});
  check_like("weight", weight, "x", x);
  if (bias) check_shape("bias", *bias, {problem.outputs});
  if (residual) check_shape("residual", *residual, shape);
  if (mask) {
    shape.back() = 1;
    check_shape("mask", *mask, shape);
  }
  problem.activation = read_activation(activation);
  problem.residual = residual.has_value();
  problem.masked = mask.has_value();
  return problem;
}

// Checks the tensors of a linear layer, and returns the problem.
inline msda::LinearProblem make_linear_problem(const Tensor& x, const Tensor& weight,
                                               const std::optional<Tensor>& bias,
                                               const std::optional<Tensor>& residual,
                                               const std::optional<Tensor>& mask,
                                               const std::optional<Tensor>& norm_weight,
                                               const std::optional<Tensor>& norm_bias,
                                               const std::string& activation, double eps) {
  auto problem = make_layer<msda::LinearProblem>(x, weight, bias, residual, mask, activation);
  if (bias) check_like("bias", *bias, "x", x);
  if (residual) check_like("residual", *residual, "x", x);
  if (mask) check_like("mask", *mask, "x", x);
  STD_TORCH_CHECK(norm_weight.has_value() == norm_bias.has_value(),
                  "norm_bias: expected a tensor with norm_weight, and none without");
  if (norm_weight) {
    check_shape("norm_weight", *norm_weight, {problem.outputs});
    check_like("norm_weight", *norm_weight, "x", x);
    check_shape("norm_bias", *norm_bias, {problem.outputs});
    check_like("norm_bias", *norm_bias, "x", x);
  }
  problem.normed = norm_weight.has_value();
  problem.eps = eps;
  problem.type = data_type("x", x);
  return checked(problem);
}

// Checks the tensors of the largest outputs of a linear layer, and returns the problem.
inline msda::LinearMaxProblem make_linear_max_problem(const Tensor& x, const Tensor& weight,
                                                      const Tensor& bias) {
  STD_TORCH_CHECK(x.dim() >= 1, "x: expected [..., K], got a tensor without dimensions");
  STD_TORCH_CHECK(weight.dim() == 2, "weight: expected [N, K], got ", shape_of(weight));
  msda::LinearMaxProblem problem{1, x.size(x.dim() - 1), weight.size(0), data_type("x", x)};
  for (int64_t i = 0; i + 1 < x.dim(); ++i) problem.rows *= x.size(i);
  check_shape("weight", weight, {problem.outputs, problem.inputs});
  check_device("weight", weight, x);
  check_shape("bias", bias, {problem.outputs});
  check_like("bias", bias, "weight", weight);
  const auto wide = problem.type == msda::DataType::kFloat64 ? msda::DataType::kFloat64
                                                             : msda::DataType::kFloat32;
  STD_TORCH_CHECK(data_type("weight", weight) == wide, "weight: expected ", msda::name(wide));
  return checked(problem);
}

// Checks the tensors of a linear layer of a sum, and returns the problem.
inline msda::LinearOfSumProblem make_linear_of_sum_problem(const Tensor& x, const Tensor& addend,
                                                           const Tensor& weight,
                                                           const Tensor& bias) {
  STD_TORCH_CHECK(x.dim() >= 1, "x: expected [..., K], got a tensor without dimensions");
  STD_TORCH_CHECK(weight.dim() == 2, "weight: expected [N, K], got ", shape_of(weight));
  msda::LinearOfSumProblem problem{1, x.size(x.dim() - 1), weight.size(0), data_type("x", x)};
  STD_TORCH_CHECK(problem.type != msda::DataType::kFloat64,
                  "x: expected float32, float16 or bfloat16, got float64");
  for (int64_t i = 0; i + 1 < x.dim(); ++i) problem.rows *= x.size(i);
  check_shape("addend", addend, {x.sizes().begin(), x.sizes().end()});
  check_like("addend", addend, "x", x);
  check_shape("weight", weight, {problem.outputs, problem.inputs});
  check_like("weight", weight, "x", x);
  check_shape("bias", bias, {problem.outputs});
  check_like("bias", bias, "x", x);
  return checked(problem);
}

// Checks the tensor of a search for the largest numbers, and returns the problem.
inline msda::TopKProblem make_top_k_problem(const Tensor& x, int64_t count) {
  STD_TORCH_CHECK(x.dim() == 2, "x: expected [N, S], got ", shape_of(x));
  STD_TORCH_CHECK(data_type("x", x) == msda::DataType::kFloat32, "x: expected float32");
  const msda::TopKProblem problem{x.size(0), x.size(1), count};
  return checked(problem);
}

// Checks the tensors of a linear layer with 8-bit inputs, and returns the problem. The result is
// quantised if it has a scale.
inline msda::QuantizedLinearProblem make_quantized_linear_problem(
    const Tensor& x, const Tensor& weight, const Tensor& scale, const std::optional<Tensor>& bias,
    const std::optional<Tensor>& residual, const std::optional<Tensor>& mask,
    const std::string& activation, std::optional<double> output_scale, ScalarType dtype) {
  auto problem =
      make_layer<msda::QuantizedLinearProblem>(x, weight, bias, residual, mask, activation);
  const auto check_type = [&](const char* name, const Tensor& tensor, ScalarType type,
                              const char* expected) {
    check_device(name, tensor, x, "x");
    STD_TORCH_CHECK(tensor.scalar_type() == type, name, ": expected ", expected);
  };
  check_shape("scale", scale, {problem.outputs});
  check_type("scale", scale, ScalarType::Float, "float32");
  if (bias) check_type("bias", *bias, ScalarType::Float, "float32");
  if (residual) check_type("residual", *residual, dtype, "the type dtype");
  if (mask) check_type("mask", *mask, dtype, "the type dtype");
  STD_TORCH_CHECK(dtype == ScalarType::Half || dtype == ScalarType::BFloat16,
                  "dtype: expected float16 or bfloat16");
  problem.input_type = eight_bits("x", x.scalar_type());
  problem.type = dtype == ScalarType::Half ? msda::DataType::kFloat16 : msda::DataType::kBFloat16;
  problem.quantized_output = output_scale.has_value();
  problem.output_scale = static_cast<float>(output_scale.value_or(1));
  return checked(problem);
}

// Checks the tensors of layer normalisation with a result in 8 bits, and returns the problem.
inline msda::QuantizedLayerNormProblem make_quantized_layer_norm_problem(const Tensor& x,
                                                                         const Tensor& weight,
                                                                         const Tensor& bias,
                                                                         double eps, double scale,
                                                                         ScalarType dtype) {
  STD_TORCH_CHECK(x.dim() >= 1, "x: expected [..., C], got a tensor without dimensions");
  msda::QuantizedLayerNormProblem problem{1, x.size(x.dim() - 1), eps, data_type("x", x)};
  for (int64_t i = 0; i + 1 < x.dim(); ++i) problem.rows *= x.size(i);
  check_shape("weight", weight, {problem.channels});
  check_like("weight", weight, "x", x);
  check_shape("bias", bias, {problem.channels});
  check_like("bias", bias, "x", x);
  problem.output_type = eight_bits("dtype", dtype);
  problem.scale = static_cast<float>(scale);
  return checked(problem);
}

// Checks the dimensions of x [..., C] and weight1 [H, C]. Returns a FeedForwardProblem or a
// QuantizedFeedForwardProblem with their sizes.
template <class Problem>
Problem make_block(const Tensor& x, const Tensor& weight1, double eps) {
  STD_TORCH_CHECK(x.dim() >= 1, "x: expected [..., C], got a tensor without dimensions");
  STD_TORCH_CHECK(weight1.dim() == 2, "weight1: expected [H, C], got ", shape_of(weight1));
  Problem problem{1, x.size(x.dim() - 1), weight1.size(0), eps, data_type("x", x)};
  for (int64_t i = 0; i + 1 < x.dim(); ++i) problem.rows *= x.size(i);
  return problem;
}

// Checks the tensors of a feed-forward block, and returns the problem.
inline msda::FeedForwardProblem make_feed_forward_problem(
    const Tensor& x, const Tensor& weight1, const Tensor& bias1, const Tensor& weight2,
    const Tensor& bias2, const Tensor& norm_weight, const Tensor& norm_bias, double eps) {
  const auto problem = make_block<msda::FeedForwardProblem>(x, weight1, eps);
  const auto check_tensor = [&](const char* name, const Tensor& tensor,
                                const std::vector<int64_t>& shape) {
    check_shape(name, tensor, shape);
    check_like(name, tensor, "x", x);
  };
  const int64_t channels = problem.channels, hidden = problem.hidden;
  check_tensor("weight1", weight1, {hidden, channels});
  check_tensor("bias1", bias1, {hidden});
  check_tensor("weight2", weight2, {channels, hidden});
  check_tensor("bias2", bias2, {channels});
  check_tensor("norm_weight", norm_weight, {channels});
  check_tensor("norm_bias", norm_bias, {channels});
  return checked(problem);
}

// Checks the tensors of a feed-forward block in int8, and returns the problem.
inline msda::QuantizedFeedForwardProblem make_quantized_feed_forward_problem(
    const Tensor& x, const Tensor& weight1, const Tensor& scale1, const Tensor& bias1,
    const Tensor& weight2, const Tensor& scale2, const Tensor& bias2, const Tensor& norm_weight,
    const Tensor& norm_bias, double x_scale, double hidden_scale, double eps,
    std::optional<double> next_scale) {
  auto problem = make_block<msda::QuantizedFeedForwardProblem>(x, weight1, eps);
  const auto check_tensor = [&](const char* name, const Tensor& tensor, ScalarType type,
                                const char* expected, const std::vector<int64_t>& shape) {
    check_shape(name, tensor, shape);
    check_device(name, tensor, x, "x");
    STD_TORCH_CHECK(tensor.scalar_type() == type, name, ": expected ", expected);
  };
  const int64_t channels = problem.channels, hidden = problem.hidden;
  const ScalarType wide = x.scalar_type();
  check_tensor("weight1", weight1, ScalarType::Char, "int8", {hidden, channels});
  check_tensor("scale1", scale1, ScalarType::Float, "float32", {hidden});
  check_tensor("bias1", bias1, ScalarType::Float, "float32", {hidden});
  check_tensor("weight2", weight2, ScalarType::Char, "int8", {channels, hidden});
  check_tensor("scale2", scale2, ScalarType::Float, "float32", {channels});
  check_tensor("bias2", bias2, ScalarType::Float, "float32", {channels});
  check_tensor("norm_weight", norm_weight, wide, "the type of x", {channels});
  check_tensor("norm_bias", norm_bias, wide, "the type of x", {channels});
  if (next_scale) {
    problem.next_scale = static_cast<float>(*next_scale);
    STD_TORCH_CHECK(problem.next_scale != 0, "next_scale: should be a number above 0, got 0");
  }
  problem.x_scale = static_cast<float>(x_scale);
  problem.hidden_scale = static_cast<float>(hidden_scale);
  return checked(problem);
}

// Checks the tensors of image input, and returns the problem. The image's pixels are contiguous
// along a row; rows may lie apart.
inline msda::ImageInputProblem make_image_input_problem(const Tensor& image, const Tensor& target,
                                                        int64_t height, int64_t width,
                                                        const std::vector<double>& mean,
                                                        const std::vector<double>& std, bool bgr) {
  STD_TORCH_CHECK(image.dim() == 3 && image.size(2) == 3, "image: expected [H, W, 3], got ",
                  shape_of(image));
  STD_TORCH_CHECK(image.scalar_type() == ScalarType::Byte, "image: expected uint8");
  STD_TORCH_CHECK(target.dim() == 3 && target.size(0) == 3, "target: expected [3, H, W], got ",
                  shape_of(target));
  STD_TORCH_CHECK(target.is_contiguous(), "target: expected a contiguous tensor");
  check_device("target", target, image, "image");
  STD_TORCH_CHECK(mean.size() == 3, "mean: expected 3 numbers, got ", mean.size());
  STD_TORCH_CHECK(std.size() == 3, "std: expected 3 numbers, got ", std.size());
  msda::ImageInputProblem problem{image.size(0), image.size(1),  image.stride(0), height,
                                  width,         target.size(1), target.size(2)};
  std::copy(mean.begin(), mean.end(), problem.mean);
  std::copy(std.begin(), std.end(), problem.std);
  problem.bgr = bgr;
  problem.type = data_type("target", target);
  return checked(problem);
}

// Returns a tensor [N, Q, ...] whose queries are contiguous and lie `stride` elements apart: the
// tensor itself if it has this form, as columns of a wider tensor do, else a contiguous copy.
inline Tensor with_stride(const Tensor& tensor, int64_t& stride) {
  int64_t size = 1;  // of a query, as far as it is contiguous
  for (int64_t i = tensor.dim() - 1; i >= 2; --i) {
    if (tensor.size(i) != 1 && tensor.stride(i) != size) return torch::stable::contiguous(tensor);
    size *= tensor.size(i);
  }
  const int64_t batch = tensor.size(0), queries = tensor.size(1);
  const int64_t step = queries > 1 ? tensor.stride(1) : batch > 1 ? tensor.stride(0) : size;
  const bool uniform = batch == 1 || queries == 1 || tensor.stride(0) == queries * step;
  if (!uniform || step < size) return torch::stable::contiguous(tensor);
  stride = step;
  return tensor;
}

inline msda::ForwardArguments make_arguments(const Tensor& value, const Tensor& spatial_shapes,
                                             const Tensor& level_start_index,
                                             const std::optional<Tensor>& reference_points,
                                             const Tensor& points, const Tensor& weights) {
  return {value.const_data_ptr(),
          spatial_shapes.const_data_ptr(),
          level_start_index.const_data_ptr(),
          reference_points ? reference_points->const_data_ptr() : nullptr,
          points.const_data_ptr(),
          weights.const_data_ptr()};
}

}  // namespace binding
