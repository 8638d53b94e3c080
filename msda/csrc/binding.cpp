// Registers the operators with Torch through its stable ABI: one shared object serves every Python,
// and Torch 2.10 and later. Each implementation checks its tensors, fills the structs of
// msda/params.h and calls the kernels.
//
// msda/checks.py raises the errors of Python callers. The checks here guard direct calls of
// torch.ops.
#include <torch/csrc/inductor/aoti_torch/c/shim.h>
#include <torch/csrc/stable/accelerator.h>
#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>
#include <torch/headeronly/core/ScalarType.h>
#include <torch/headeronly/util/BFloat16.h>
#include <torch/headeronly/util/Exception.h>
#include <torch/headeronly/util/Half.h>

#include <cstdint>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "msda/backward_work.h"
#include "msda/cpu_backward.h"
#include "msda/cpu_forward.h"
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
#include "problem.h"

#ifdef MSDA_WITH_CUDA
#include "msda/launchers.h"

// Torch's CUDA library defines it. Weak, so that this object also loads into a Torch without CUDA.
extern "C" __attribute__((weak)) AOTITorchError
aoti_torch_get_current_cuda_stream(int32_t device_index, void** stream);
#endif

extern "C" __attribute__((visibility("default"))) const char* msda_cuda_architectures() {
  return MSDA_CUDA_ARCHITECTURES;
}

namespace {

using binding::check_device;
using binding::check_shape;
using binding::make_arguments;
using binding::make_problem;
using binding::PointsPerLevel;
using binding::with_stride;
using torch::headeronly::ScalarType;
using torch::stable::Tensor;

template <typename Function>
void dispatch_cpu(msda::DataType type, const Function& function) {
  switch (type) {
    case msda::DataType::kFloat32:
      return function(float());
    case msda::DataType::kFloat16:
      return function(c10::Half());
    case msda::DataType::kBFloat16:
      return function(c10::BFloat16());
    case msda::DataType::kFloat64:
      return function(double());
  }
}

#ifdef MSDA_WITH_CUDA
cudaStream_t current_stream(const Tensor& tensor) {
  STD_TORCH_CHECK(aoti_torch_get_current_cuda_stream != nullptr, "msda: this Torch has no CUDA");
  void* stream = nullptr;
  TORCH_ERROR_CODE_CHECK(aoti_torch_get_current_cuda_stream(tensor.get_device_index(), &stream));
  return static_cast<cudaStream_t>(stream);
}

// Raises an error that names the operator and describes its problem, unless a launch has succeeded.
template <typename... Description>
void check_launch(const char* operation, cudaError_t status, const Description&... description) {
  if (status == cudaSuccess) return;
  const std::string message = msda::check_environment();
  STD_TORCH_CHECK(message.empty(), message);
  STD_TORCH_CHECK(false, "msda::", operation, ": ", cudaGetErrorString(status), " for ",
                  description...);
}

void check_launch(const char* operation, cudaError_t status, const msda::Problem& problem) {
  check_launch(operation, status, "N=", problem.batch_size, " S=", problem.num_cells,
               " M=", problem.num_heads, " D=", problem.head_dim, " Q=", problem.num_queries,
               " K=", problem.total_points, " ", msda::name(problem.value_type));
}
#endif

// Runs the forward kernel of the tensors' device. The tensors are contiguous, except for the
// problem's strides.
Tensor run_forward(const msda::Problem& problem, msda::ForwardArguments arguments,
                   const Tensor& value, ScalarType output_type) {
  Tensor output = torch::stable::new_empty(
      value, {problem.batch_size, problem.num_queries, problem.num_heads * problem.head_dim},
      output_type);
  arguments.output = output.mutable_data_ptr();
  if (problem.empty()) return output;
#ifdef MSDA_WITH_CUDA
  if (value.is_cuda()) {
    const torch::stable::accelerator::DeviceGuard guard(value.get_device_index());
    check_launch("forward", msda::forward(problem, arguments, current_stream(value)), problem);
    return output;
  }
#endif
  const int64_t items = problem.batch_size * problem.num_queries * problem.num_heads;
  dispatch_cpu(problem.value_type, [&](auto zero) {
    torch::stable::parallel_for(0, items, 64, [&](int64_t first, int64_t last) {
      msda::cpu::forward<decltype(zero)>(problem, arguments, first, last);
    });
  });
  return output;
}

// Whether the operator widens float16 tensors first: on the CPU, which converts float16 in
// software. Converting a tensor once is several times faster than converting every sample.
bool widens(const Tensor& value) {
  return !value.is_cuda() && value.scalar_type() == ScalarType::Half;
}

Tensor widen(const Tensor& tensor) {
  return tensor.scalar_type() == ScalarType::Half ? torch::stable::to(tensor, ScalarType::Float)
                                                  : tensor;
}

// Runs `fused_attention`; without reference points `attention`, with a scale
// `quantized_fused_attention`.
Tensor attend(Tensor value, Tensor spatial_shapes, Tensor level_start_index,
              std::optional<Tensor> reference_points, Tensor points, Tensor weights,
              const PointsPerLevel& points_per_level,
              std::optional<double> value_scale = std::nullopt) {
  if (widens(value)) {
    return torch::stable::to(
        attend(widen(value), spatial_shapes, level_start_index, reference_points, widen(points),
               widen(weights), points_per_level),
        ScalarType::Half);
  }
  msda::Problem problem = make_problem(value, spatial_shapes, level_start_index, reference_points,
                                       points, weights, points_per_level, value_scale);
  value = torch::stable::contiguous(value);
  spatial_shapes = torch::stable::contiguous(spatial_shapes);
  level_start_index = torch::stable::contiguous(level_start_index);
  if (reference_points) reference_points = torch::stable::contiguous(*reference_points);
  points = with_stride(points, problem.location_stride);
  weights = with_stride(weights, problem.weight_stride);
  return run_forward(
      problem,
      make_arguments(value, spatial_shapes, level_start_index, reference_points, points, weights),
      value, value_scale ? points.scalar_type() : value.scalar_type());
}

Tensor attention(Tensor value, Tensor spatial_shapes, Tensor level_start_index,
                 Tensor sampling_locations, Tensor attention_weights,
                 PointsPerLevel points_per_level) {
  return attend(value, spatial_shapes, level_start_index, std::nullopt, sampling_locations,
                attention_weights, points_per_level);
}

Tensor fused_attention(Tensor value, Tensor spatial_shapes, Tensor level_start_index,
                       Tensor reference_points, Tensor sampling_offsets, Tensor attention_logits,
                       PointsPerLevel points_per_level) {
  return attend(value, spatial_shapes, level_start_index, reference_points, sampling_offsets,
                attention_logits, points_per_level);
}

#ifdef MSDA_WITH_CUDA
Tensor quantized_fused_attention(Tensor value, Tensor spatial_shapes, Tensor level_start_index,
                                 Tensor reference_points, Tensor sampling_offsets,
                                 Tensor attention_logits, double value_scale,
                                 PointsPerLevel points_per_level) {
  return attend(value, spatial_shapes, level_start_index, reference_points, sampling_offsets,
                attention_logits, points_per_level, value_scale);
}
#endif

// The gradients of a backward. That of the reference points is empty unless the caller wants it.
struct Gradients {
  Tensor value, points, weights, reference_points;
};

// Computes the gradients of contiguous tensors by the kernels of their device. The caller has set
// arguments.grad_* and arguments.deterministic; this function allocates the work memory.
void run_backward(const msda::Problem& problem, msda::BackwardArguments arguments,
                  const Tensor& value) {
#ifdef MSDA_WITH_CUDA
  if (value.is_cuda()) {
    const size_t bytes = msda::backward_work(problem, arguments).bytes;
    const Tensor work =
        torch::stable::new_zeros(value, {static_cast<int64_t>(bytes)}, ScalarType::Byte);
    arguments.work = work.mutable_data_ptr();
    const torch::stable::accelerator::DeviceGuard guard(value.get_device_index());
    check_launch("backward", msda::backward(problem, arguments, current_stream(value)), problem);
    return;
  }
#endif
  arguments.deterministic = false;  // the CPU's order of sums is fixed
  const size_t bytes = msda::backward_work(problem, arguments).bytes;
  const Tensor work =
      torch::stable::new_zeros(value, {static_cast<int64_t>(bytes)}, ScalarType::Byte);
  arguments.work = work.mutable_data_ptr();
  const int64_t heads = problem.batch_size * problem.num_heads;
  const int64_t queries = problem.batch_size * problem.num_queries;
  dispatch_cpu(problem.value_type, [&](auto zero) {
    torch::stable::parallel_for(0, heads, 1, [&](int64_t first, int64_t last) {
      msda::cpu::gradients<decltype(zero)>(problem, arguments, first, last);
    });
    if (arguments.grad_reference_points == nullptr) return;
    torch::stable::parallel_for(0, queries, 16, [&](int64_t first, int64_t last) {
      msda::cpu::reference_gradients<decltype(zero)>(problem, arguments, first, last);
    });
  });
}

// Returns the gradients of `fused_attention`; without reference points, those of `attention`.
Gradients differentiate(Tensor grad_output, Tensor value, Tensor spatial_shapes,
                        Tensor level_start_index, std::optional<Tensor> reference_points,
                        Tensor points, Tensor weights, const PointsPerLevel& points_per_level,
                        bool reference_gradient, bool deterministic) {
  const msda::Problem problem = make_problem(value, spatial_shapes, level_start_index,
                                             reference_points, points, weights, points_per_level);
  check_shape("grad_output", grad_output,
              {problem.batch_size, problem.num_queries, problem.num_heads * problem.head_dim});
  check_device("grad_output", grad_output, value);
  STD_TORCH_CHECK(grad_output.scalar_type() == value.scalar_type(),
                  "grad_output: expected the type of value");
  grad_output = torch::stable::contiguous(grad_output);
  value = torch::stable::contiguous(value);
  spatial_shapes = torch::stable::contiguous(spatial_shapes);
  level_start_index = torch::stable::contiguous(level_start_index);
  points = torch::stable::contiguous(points);
  weights = torch::stable::contiguous(weights);
  if (reference_points) reference_points = torch::stable::contiguous(*reference_points);

  Gradients gradients;
  // An empty problem launches nothing, but heads without channels have locations and weights.
  const auto make = [&](const Tensor& like) {
    return problem.empty() ? torch::stable::new_zeros(like, like.sizes())
                           : torch::stable::new_empty(like, like.sizes());
  };
  gradients.points = make(points);
  gradients.weights = make(weights);
  if (reference_points) {
    gradients.reference_points = reference_gradient
                                     ? make(*reference_points)
                                     : torch::stable::new_empty(*reference_points, {0});
  }
  if (problem.empty()) {
    gradients.value = torch::stable::new_zeros(value, value.sizes());
    return gradients;
  }
  const ScalarType sum_type =
      problem.value_type == msda::DataType::kFloat64 ? ScalarType::Double : ScalarType::Float;
  const Tensor grad_value = torch::stable::new_zeros(value, value.sizes(), sum_type);

  msda::BackwardArguments arguments;
  arguments.forward =
      make_arguments(value, spatial_shapes, level_start_index, reference_points, points, weights);
  arguments.grad_output = grad_output.const_data_ptr();
  arguments.grad_value = grad_value.mutable_data_ptr();
  arguments.grad_sampling_locations = gradients.points.mutable_data_ptr();
  arguments.grad_attention_weights = gradients.weights.mutable_data_ptr();
  if (reference_gradient) {
    arguments.grad_reference_points = gradients.reference_points.mutable_data_ptr();
  }
  arguments.deterministic = deterministic;
  run_backward(problem, arguments, value);
  gradients.value = torch::stable::to(grad_value, value.scalar_type());
  return gradients;
}

std::tuple<Tensor, Tensor, Tensor> attention_backward(
    Tensor grad_output, Tensor value, Tensor spatial_shapes, Tensor level_start_index,
    Tensor sampling_locations, Tensor attention_weights, PointsPerLevel points_per_level,
    bool deterministic) {
  const Gradients gradients =
      differentiate(grad_output, value, spatial_shapes, level_start_index, std::nullopt,
                    sampling_locations, attention_weights, points_per_level, false, deterministic);
  return {gradients.value, gradients.points, gradients.weights};
}

std::tuple<Tensor, Tensor, Tensor, Tensor> fused_attention_backward(
    Tensor grad_output, Tensor value, Tensor spatial_shapes, Tensor level_start_index,
    Tensor reference_points, Tensor sampling_offsets, Tensor attention_logits,
    PointsPerLevel points_per_level, bool reference_gradient, bool deterministic) {
  const Gradients gradients = differentiate(grad_output, value, spatial_shapes, level_start_index,
                                            reference_points, sampling_offsets, attention_logits,
                                            points_per_level, reference_gradient, deterministic);
  return {gradients.value, gradients.reference_points, gradients.points, gradients.weights};
}

#ifdef MSDA_WITH_CUDA
Tensor window_attention(Tensor qkv, Tensor bias, std::optional<Tensor> padding, int64_t window_size,
                        int64_t shift, std::optional<double> output_scale) {
  const msda::WindowProblem problem =
      binding::make_window_problem(qkv, bias, padding, window_size, shift, output_scale);
  qkv = torch::stable::contiguous(qkv);
  bias = torch::stable::contiguous(bias);
  if (padding) padding = torch::stable::contiguous(*padding);
  Tensor output = torch::stable::new_empty(
      qkv, {problem.batch_size, problem.height, problem.width, qkv.size(3) / 3},
      output_scale ? ScalarType::Char : qkv.scalar_type());
  const msda::WindowArguments arguments{qkv.const_data_ptr(), bias.const_data_ptr(),
                                        padding ? padding->const_data_ptr() : nullptr,
                                        output.mutable_data_ptr()};
  const torch::stable::accelerator::DeviceGuard guard(qkv.get_device_index());
  check_launch("window_attention", msda::window_attention(problem, arguments, current_stream(qkv)),
               "qkv=", binding::shape_of(qkv), " heads=", problem.num_heads,
               " window_size=", window_size, " shift=", shift, " ", msda::name(problem.type),
               output_scale ? " to int8" : "");
  return output;
}

// Group normalisation of levels whose tensors are those of `problem`. Returns the result, and the
// one in int8 if there is one, in these shapes.
std::vector<Tensor> run_group_norm(const char* name, const msda::GroupNormProblem& problem,
                                   std::vector<Tensor> levels, std::vector<Tensor> weights,
                                   std::vector<Tensor> biases, const std::vector<int64_t>& shape) {
  msda::GroupNormArguments arguments;
  for (size_t i = 0; i < levels.size(); ++i) {
    for (Tensor* tensor : {&levels[i], &weights[i], &biases[i]}) {
      *tensor = torch::stable::contiguous(*tensor);
    }
    arguments.levels[i] = {levels[i].const_data_ptr(), weights[i].const_data_ptr(),
                           biases[i].const_data_ptr()};
  }
  std::vector<Tensor> outputs{torch::stable::new_empty(levels[0], shape)};
  arguments.output = outputs[0].mutable_data_ptr();
  if (problem.next_scale != 0) {
    outputs.push_back(torch::stable::new_empty(levels[0], shape, ScalarType::Char));
    arguments.quantized = outputs.back().mutable_data_ptr();
  }
  const Tensor work = torch::stable::new_empty(
      levels[0], {static_cast<int64_t>(msda::group_norm_work(problem))}, ScalarType::Byte);
  arguments.work = work.mutable_data_ptr();
  const torch::stable::accelerator::DeviceGuard guard(levels[0].get_device_index());
  check_launch(name, msda::group_norm(problem, arguments, current_stream(levels[0])),
               "output=", binding::to_text(shape), " num_groups=", problem.num_groups, " ",
               msda::name(problem.type));
  return outputs;
}

Tensor group_norm(Tensor x, Tensor weight, Tensor bias, int64_t num_groups, double eps) {
  const msda::GroupNormProblem problem = binding::make_group_norm_problem(
      {x}, {weight}, {bias}, num_groups, eps, std::nullopt, /*in_lists=*/false);
  const std::vector<int64_t> shape(x.sizes().begin(), x.sizes().end());
  return run_group_norm("group_norm", problem, {x}, {weight}, {bias}, shape)[0];
}

std::vector<Tensor> group_norm_levels(std::vector<Tensor> levels, std::vector<Tensor> weights,
                                      std::vector<Tensor> biases, int64_t num_groups, double eps,
                                      std::optional<double> next_scale) {
  const msda::GroupNormProblem problem = binding::make_group_norm_problem(
      levels, weights, biases, num_groups, eps, next_scale, /*in_lists=*/true);
  const std::vector<int64_t> shape{problem.batch_size, problem.num_cells(), problem.channels};
  return run_group_norm("group_norm_levels", problem, levels, weights, biases, shape);
}

void image_input(Tensor image, Tensor target, int64_t height, int64_t width,
                 std::vector<double> mean, std::vector<double> std, bool bgr) {
  if (image.dim() == 3 && (image.stride(2) != 1 || image.stride(1) != 3)) {
    image = torch::stable::contiguous(image);
  }
  const msda::ImageInputProblem problem =
      binding::make_image_input_problem(image, target, height, width, mean, std, bgr);
  const msda::ImageInputArguments arguments{image.const_data_ptr(), target.mutable_data_ptr()};
  const torch::stable::accelerator::DeviceGuard guard(image.get_device_index());
  check_launch("image_input", msda::image_input(problem, arguments, current_stream(image)),
               "image=", binding::shape_of(image), " target=", binding::shape_of(target), " ",
               msda::name(problem.type));
}

msda::LinearArguments linear_arguments(const Tensor& x, const Tensor& weight,
                                       const std::optional<Tensor>& bias,
                                       const std::optional<Tensor>& residual,
                                       const std::optional<Tensor>& mask,
                                       const std::optional<Tensor>& norm_weight,
                                       const std::optional<Tensor>& norm_bias) {
  const auto data = [](const std::optional<Tensor>& tensor) {
    return tensor ? tensor->const_data_ptr() : nullptr;
  };
  return {x.const_data_ptr(), weight.const_data_ptr(), data(bias),     data(residual),
          data(mask),         data(norm_weight),       data(norm_bias)};
}

bool has_fast_linear(Tensor x, Tensor weight, std::optional<Tensor> bias,
                     std::optional<Tensor> residual, std::optional<Tensor> mask,
                     std::optional<Tensor> norm_weight, std::optional<Tensor> norm_bias,
                     std::string activation, double eps) {
  const msda::LinearProblem problem = binding::make_linear_problem(
      x, weight, bias, residual, mask, norm_weight, norm_bias, activation, eps);
  const torch::stable::accelerator::DeviceGuard guard(x.get_device_index());
  return msda::has_fast_linear(
      problem, linear_arguments(x, weight, bias, residual, mask, norm_weight, norm_bias));
}

Tensor linear_kernel(Tensor x, Tensor weight, std::optional<Tensor> bias,
                     std::optional<Tensor> residual, std::optional<Tensor> mask,
                     std::optional<Tensor> norm_weight, std::optional<Tensor> norm_bias,
                     std::string activation, double eps) {
  const msda::LinearProblem problem = binding::make_linear_problem(
      x, weight, bias, residual, mask, norm_weight, norm_bias, activation, eps);
  std::vector<int64_t> shape(x.sizes().begin(), x.sizes().end());
  shape.back() = problem.outputs;
  Tensor output = torch::stable::new_empty(x, shape);
  msda::LinearArguments arguments =
      linear_arguments(x, weight, bias, residual, mask, norm_weight, norm_bias);
  arguments.output = output.mutable_data_ptr();
  const torch::stable::accelerator::DeviceGuard guard(x.get_device_index());
  check_launch("linear", msda::linear(problem, arguments, current_stream(x)),
               "x=", binding::shape_of(x), " weight=", binding::shape_of(weight),
               " activation=", activation, " residual=", residual ? "given" : "none",
               " mask=", mask ? "given" : "none", " norm=", norm_weight ? "given" : "none", " ",
               msda::name(problem.type));
  return output;
}

Tensor linear_max(Tensor x, Tensor weight, Tensor bias) {
  const msda::LinearMaxProblem problem = binding::make_linear_max_problem(x, weight, bias);
  x = torch::stable::contiguous(x);
  weight = torch::stable::contiguous(weight);
  bias = torch::stable::contiguous(bias);
  const std::vector<int64_t> shape(x.sizes().begin(), x.sizes().end() - 1);
  Tensor output = torch::stable::new_empty(weight, shape);
  const msda::LinearMaxArguments arguments{x.const_data_ptr(), weight.const_data_ptr(),
                                           bias.const_data_ptr(), output.mutable_data_ptr()};
  const torch::stable::accelerator::DeviceGuard guard(x.get_device_index());
  check_launch("linear_max", msda::linear_max(problem, arguments, current_stream(x)),
               "x=", binding::shape_of(x), " weight=", binding::shape_of(weight), " ",
               msda::name(problem.type));
  return output;
}

Tensor linear_of_sum(Tensor x, Tensor addend, Tensor weight, Tensor bias) {
  const msda::LinearOfSumProblem problem =
      binding::make_linear_of_sum_problem(x, addend, weight, bias);
  for (Tensor* tensor : {&x, &addend, &weight, &bias}) {
    *tensor = torch::stable::contiguous(*tensor);
  }
  std::vector<int64_t> shape(x.sizes().begin(), x.sizes().end());
  shape.back() = problem.outputs;
  Tensor output = torch::stable::new_empty(x, shape);
  const msda::LinearOfSumArguments arguments{x.const_data_ptr(), addend.const_data_ptr(),
                                             weight.const_data_ptr(), bias.const_data_ptr(),
                                             output.mutable_data_ptr()};
  const torch::stable::accelerator::DeviceGuard guard(x.get_device_index());
  check_launch("linear_of_sum", msda::linear_of_sum(problem, arguments, current_stream(x)),
               "x=", binding::shape_of(x), " weight=", binding::shape_of(weight), " ",
               msda::name(problem.type));
  return output;
}

Tensor top_k_indices(Tensor x, int64_t count) {
  const msda::TopKProblem problem = binding::make_top_k_problem(x, count);
  x = torch::stable::contiguous(x);
  Tensor indices = torch::stable::new_empty(x, {problem.rows, count}, ScalarType::Int);
  const Tensor work = torch::stable::new_empty(x, {static_cast<int64_t>(msda::top_k_work(problem))},
                                               ScalarType::Byte);
  const msda::TopKArguments arguments{static_cast<const float*>(x.const_data_ptr()),
                                      static_cast<int32_t*>(indices.mutable_data_ptr()),
                                      work.mutable_data_ptr()};
  const torch::stable::accelerator::DeviceGuard guard(x.get_device_index());
  check_launch("top_k_indices", msda::top_k(problem, arguments, current_stream(x)),
               "x=", binding::shape_of(x), " count=", count);
  return indices;
}

Tensor quantized_linear(Tensor x, Tensor weight, Tensor scale, std::optional<Tensor> bias,
                        std::optional<Tensor> residual, std::optional<Tensor> mask,
                        std::string activation, std::optional<double> output_scale,
                        ScalarType dtype) {
  const msda::QuantizedLinearProblem problem = binding::make_quantized_linear_problem(
      x, weight, scale, bias, residual, mask, activation, output_scale, dtype);
  x = torch::stable::contiguous(x);
  weight = torch::stable::contiguous(weight);
  scale = torch::stable::contiguous(scale);
  if (bias) bias = torch::stable::contiguous(*bias);
  if (residual) residual = torch::stable::contiguous(*residual);
  if (mask) mask = torch::stable::contiguous(*mask);
  std::vector<int64_t> shape(x.sizes().begin(), x.sizes().end());
  shape.back() = problem.outputs;
  Tensor output = torch::stable::new_empty(x, shape, output_scale ? x.scalar_type() : dtype);
  const msda::QuantizedLinearArguments arguments{x.const_data_ptr(),
                                                 weight.const_data_ptr(),
                                                 scale.const_data_ptr(),
                                                 bias ? bias->const_data_ptr() : nullptr,
                                                 residual ? residual->const_data_ptr() : nullptr,
                                                 mask ? mask->const_data_ptr() : nullptr,
                                                 output.mutable_data_ptr()};
  const torch::stable::accelerator::DeviceGuard guard(x.get_device_index());
  check_launch("quantized_linear", msda::quantized_linear(problem, arguments, current_stream(x)),
               "x=", binding::shape_of(x), " weight=", binding::shape_of(weight),
               " activation=", activation, " residual=", residual ? "given" : "none",
               " mask=", mask ? "given" : "none", " ", msda::name(problem.input_type), " to ",
               output_scale ? msda::name(problem.input_type) : msda::name(problem.type));
  return output;
}

Tensor quantized_layer_norm(Tensor x, Tensor weight, Tensor bias, double eps, double scale,
                            ScalarType dtype) {
  const msda::QuantizedLayerNormProblem problem =
      binding::make_quantized_layer_norm_problem(x, weight, bias, eps, scale, dtype);
  x = torch::stable::contiguous(x);
  weight = torch::stable::contiguous(weight);
  bias = torch::stable::contiguous(bias);
  Tensor output = torch::stable::new_empty(x, x.sizes(), dtype);
  const msda::QuantizedLayerNormArguments arguments{x.const_data_ptr(), weight.const_data_ptr(),
                                                    bias.const_data_ptr(),
                                                    output.mutable_data_ptr()};
  const torch::stable::accelerator::DeviceGuard guard(x.get_device_index());
  check_launch("quantized_layer_norm",
               msda::quantized_layer_norm(problem, arguments, current_stream(x)),
               "x=", binding::shape_of(x), " ", msda::name(problem.type), " to ",
               msda::name(problem.output_type));
  return output;
}

Tensor feed_forward(Tensor x, Tensor weight1, Tensor bias1, Tensor weight2, Tensor bias2,
                    Tensor norm_weight, Tensor norm_bias, double eps) {
  const msda::FeedForwardProblem problem = binding::make_feed_forward_problem(
      x, weight1, bias1, weight2, bias2, norm_weight, norm_bias, eps);
  for (Tensor* tensor : {&x, &weight1, &bias1, &weight2, &bias2, &norm_weight, &norm_bias}) {
    *tensor = torch::stable::contiguous(*tensor);
  }
  Tensor output = torch::stable::new_empty(x, x.sizes());
  const Tensor work = torch::stable::new_empty(
      x, {static_cast<int64_t>(msda::feed_forward_work(problem))}, ScalarType::Byte);
  const msda::FeedForwardArguments arguments{
      x.const_data_ptr(),         weight1.const_data_ptr(),  bias1.const_data_ptr(),
      weight2.const_data_ptr(),   bias2.const_data_ptr(),    norm_weight.const_data_ptr(),
      norm_bias.const_data_ptr(), output.mutable_data_ptr(), work.mutable_data_ptr()};
  const torch::stable::accelerator::DeviceGuard guard(x.get_device_index());
  check_launch("feed_forward", msda::feed_forward(problem, arguments, current_stream(x)),
               "x=", binding::shape_of(x), " weight1=", binding::shape_of(weight1), " ",
               msda::name(problem.type));
  return output;
}

std::vector<Tensor> quantized_feed_forward(Tensor x, Tensor weight1, Tensor scale1, Tensor bias1,
                                           Tensor weight2, Tensor scale2, Tensor bias2,
                                           Tensor norm_weight, Tensor norm_bias, double x_scale,
                                           double hidden_scale, double eps,
                                           std::optional<double> next_scale) {
  const msda::QuantizedFeedForwardProblem problem = binding::make_quantized_feed_forward_problem(
      x, weight1, scale1, bias1, weight2, scale2, bias2, norm_weight, norm_bias, x_scale,
      hidden_scale, eps, next_scale);
  for (Tensor* tensor :
       {&x, &weight1, &scale1, &bias1, &weight2, &scale2, &bias2, &norm_weight, &norm_bias}) {
    *tensor = torch::stable::contiguous(*tensor);
  }
  std::vector<Tensor> outputs{torch::stable::new_empty(x, x.sizes())};
  msda::QuantizedFeedForwardArguments arguments{
      x.const_data_ptr(),     weight1.const_data_ptr(),     scale1.const_data_ptr(),
      bias1.const_data_ptr(), weight2.const_data_ptr(),     scale2.const_data_ptr(),
      bias2.const_data_ptr(), norm_weight.const_data_ptr(), norm_bias.const_data_ptr()};
  arguments.output = outputs[0].mutable_data_ptr();
  if (next_scale) {
    outputs.push_back(torch::stable::new_empty(x, x.sizes(), ScalarType::Char));
    arguments.quantized = outputs.back().mutable_data_ptr();
  }
  const torch::stable::accelerator::DeviceGuard guard(x.get_device_index());
  check_launch("quantized_feed_forward",
               msda::quantized_feed_forward(problem, arguments, current_stream(x)),
               "x=", binding::shape_of(x), " weight1=", binding::shape_of(weight1), " ",
               msda::name(problem.type));
  return outputs;
}
#endif

}  // namespace

STABLE_TORCH_LIBRARY(msda, library) {
  library.def(
      "attention(Tensor value, Tensor spatial_shapes, Tensor level_start_index, "
      "Tensor sampling_locations, Tensor attention_weights, int[]? points_per_level=None) -> "
      "Tensor");
  library.def(
      "fused_attention(Tensor value, Tensor spatial_shapes, Tensor level_start_index, "
      "Tensor reference_points, Tensor sampling_offsets, Tensor attention_logits, "
      "int[]? points_per_level=None) -> Tensor");
  library.def(
      "attention_backward(Tensor grad_output, Tensor value, Tensor spatial_shapes, "
      "Tensor level_start_index, Tensor sampling_locations, Tensor attention_weights, "
      "int[]? points_per_level=None, bool deterministic=False) -> (Tensor, Tensor, Tensor)");
  // Returns the gradients of value, reference_points (empty unless wanted), offsets and logits.
  library.def(
      "fused_attention_backward(Tensor grad_output, Tensor value, Tensor spatial_shapes, "
      "Tensor level_start_index, Tensor reference_points, Tensor sampling_offsets, "
      "Tensor attention_logits, int[]? points_per_level=None, bool reference_gradient=True, "
      "bool deterministic=False) -> (Tensor, Tensor, Tensor, Tensor)");
  // msda/registrations.py implements it for the CPU, and its gradients for both devices.
  library.def(
      "window_attention(Tensor qkv, Tensor bias, Tensor? padding, int window_size, int shift, "
      "float? output_scale=None) -> Tensor");
  library.def(
      "window_attention_backward(Tensor grad_output, Tensor qkv, Tensor bias, Tensor? padding, "
      "int window_size, int shift) -> (Tensor, Tensor, Tensor)");
  // msda/registrations.py implements it for the CPU.
  library.def(
      "group_norm(Tensor x, Tensor weight, Tensor bias, int num_groups, float eps) -> Tensor");
  library.def(
      "group_norm_levels(Tensor[] levels, Tensor[] weights, Tensor[] biases, int num_groups, "
      "float eps, float? next_scale=None) -> Tensor[]");
  // msda/registrations.py implements both for the CPU.
  library.def("linear_max(Tensor x, Tensor weight, Tensor bias) -> Tensor");
  library.def("linear_of_sum(Tensor x, Tensor addend, Tensor weight, Tensor bias) -> Tensor");
  library.def("top_k_indices(Tensor x, int count) -> Tensor");
  // msda/registrations.py implements it, on CUDA by the two operators after it, which take
  // contiguous tensors.
  library.def(
      "linear(Tensor x, Tensor weight, Tensor? bias, Tensor? residual, Tensor? mask, "
      "Tensor? norm_weight, Tensor? norm_bias, str activation, float eps) -> Tensor");
  library.def(
      "has_fast_linear(Tensor x, Tensor weight, Tensor? bias, Tensor? residual, Tensor? mask, "
      "Tensor? norm_weight, Tensor? norm_bias, str activation, float eps) -> bool");
  library.def(
      "linear_kernel(Tensor x, Tensor weight, Tensor? bias, Tensor? residual, Tensor? mask, "
      "Tensor? norm_weight, Tensor? norm_bias, str activation, float eps) -> Tensor");
  // msda/registrations.py implements it for the CPU.
  library.def(
      "quantized_linear(Tensor x, Tensor weight, Tensor scale, Tensor? bias, Tensor? residual, "
      "Tensor? mask, str activation, float? output_scale, ScalarType dtype) -> Tensor");
  // msda/registrations.py implements it for the CPU.
  library.def(
      "quantized_layer_norm(Tensor x, Tensor weight, Tensor bias, float eps, float scale, "
      "ScalarType dtype) -> Tensor");
  // msda/registrations.py implements it for the CPU.
  library.def(
      "feed_forward(Tensor x, Tensor weight1, Tensor bias1, Tensor weight2, Tensor bias2, "
      "Tensor norm_weight, Tensor norm_bias, float eps) -> Tensor");
  // msda/registrations.py implements it for the CPU.
  library.def(
      "quantized_feed_forward(Tensor x, Tensor weight1, Tensor scale1, Tensor bias1, "
      "Tensor weight2, Tensor scale2, Tensor bias2, Tensor norm_weight, Tensor norm_bias, "
      "float x_scale, float hidden_scale, float eps, float? next_scale=None) -> Tensor[]");
  // msda/registrations.py implements it for the CPU.
  library.def(
      "quantized_fused_attention(Tensor value, Tensor spatial_shapes, Tensor level_start_index, "
      "Tensor reference_points, Tensor sampling_offsets, Tensor attention_logits, "
      "float value_scale, int[]? points_per_level=None) -> Tensor");
  // msda/registrations.py implements it for the CPU.
  library.def(
      "image_input(Tensor image, Tensor(a!) target, int height, int width, float[] mean, float[] "
      "std, bool bgr) -> ()");
}

STABLE_TORCH_LIBRARY_IMPL(msda, CPU, library) {
  library.impl("attention", TORCH_BOX(&attention));
  library.impl("fused_attention", TORCH_BOX(&fused_attention));
  library.impl("attention_backward", TORCH_BOX(&attention_backward));
  library.impl("fused_attention_backward", TORCH_BOX(&fused_attention_backward));
}

#ifdef MSDA_WITH_CUDA
STABLE_TORCH_LIBRARY_IMPL(msda, CUDA, library) {
  library.impl("window_attention", TORCH_BOX(&window_attention));
  library.impl("group_norm", TORCH_BOX(&group_norm));
  library.impl("group_norm_levels", TORCH_BOX(&group_norm_levels));
  library.impl("linear_max", TORCH_BOX(&linear_max));
  library.impl("linear_of_sum", TORCH_BOX(&linear_of_sum));
  library.impl("top_k_indices", TORCH_BOX(&top_k_indices));
  library.impl("has_fast_linear", TORCH_BOX(&has_fast_linear));
  library.impl("linear_kernel", TORCH_BOX(&linear_kernel));
  library.impl("quantized_linear", TORCH_BOX(&quantized_linear));
  library.impl("quantized_layer_norm", TORCH_BOX(&quantized_layer_norm));
  library.impl("feed_forward", TORCH_BOX(&feed_forward));
  library.impl("quantized_feed_forward", TORCH_BOX(&quantized_feed_forward));
  library.impl("quantized_fused_attention", TORCH_BOX(&quantized_fused_attention));
  library.impl("image_input", TORCH_BOX(&image_input));
  library.impl("attention", TORCH_BOX(&attention));
  library.impl("fused_attention", TORCH_BOX(&fused_attention));
  library.impl("attention_backward", TORCH_BOX(&attention_backward));
  library.impl("fused_attention_backward", TORCH_BOX(&fused_attention_backward));
}
#endif
