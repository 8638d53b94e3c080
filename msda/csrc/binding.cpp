// Registers the operators with Torch through its stable ABI: one shared object for every Python,
// and for Torch 2.10 and later. Each implementation checks, fills the structs of msda/params.h,
// calls.
//
// Python callers get their errors from msda/checks.py; the checks here guard direct calls of
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

#include "msda/cpu.h"
#include "msda/params.h"

#ifdef MSDA_WITH_CUDA
#include "msda/launch.h"

// Lives in Torch's CUDA library. Weak, so that this object also loads into a Torch without CUDA.
extern "C" __attribute__((weak)) AOTITorchError
aoti_torch_get_current_cuda_stream(int32_t device_index, void** stream);
#endif

extern "C" __attribute__((visibility("default"))) const char* msda_cuda_architectures() {
  return MSDA_CUDA_ARCHITECTURES;
}

namespace {

using torch::headeronly::ScalarType;
using torch::stable::Tensor;
using PointsPerLevel = std::optional<std::vector<int64_t>>;

std::string shape_of(const Tensor& tensor) {
  std::string text = "[";
  for (int64_t i = 0; i < tensor.dim(); ++i) {
    text += (i ? ", " : "") + std::to_string(tensor.size(i));
  }
  return text + "]";
}

void check_shape(const char* name, const Tensor& tensor, const std::vector<int64_t>& expected) {
  bool same = tensor.dim() == static_cast<int64_t>(expected.size());
  for (size_t i = 0; same && i < expected.size(); ++i) same = tensor.size(i) == expected[i];
  if (same) return;
  std::string text = "[";
  for (size_t i = 0; i < expected.size(); ++i)
    text += (i ? ", " : "") + std::to_string(expected[i]);
  STD_TORCH_CHECK(false, name, ": expected ", text, "], got ", shape_of(tensor));
}

void check_device(const char* name, const Tensor& tensor, const Tensor& value) {
  STD_TORCH_CHECK(tensor.device() == value.device(), name, ": expected a tensor on value's device");
}

msda::DataType data_type(const char* name, const Tensor& tensor) {
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

// Sizes and types, from tensors that fit each other. Points: [N, Q, M, L, P, 2], or [N, Q, M, K, 2]
// with points_per_level. Weights: as points without the last dimension; logits: [N, Q, M, K].
msda::Problem make_problem(const Tensor& value, const Tensor& spatial_shapes,
                           const Tensor& level_start_index,
                           const std::optional<Tensor>& reference_points, const char* points_name,
                           const Tensor& points, const char* weights_name, const Tensor& weights,
                           const PointsPerLevel& points_per_level) {
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
  problem.value_type = data_type("value", value);
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
  const std::vector<int64_t> rows = {problem.batch_size, problem.num_queries, problem.num_heads};
  const auto with = [&](std::initializer_list<int64_t> last) {
    std::vector<int64_t> shape = rows;
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
  const std::string complaint = msda::check(problem);
  STD_TORCH_CHECK(complaint.empty(), complaint);
  return problem;
}

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

void check_launch(const char* operation, cudaError_t status, const msda::Problem& problem) {
  STD_TORCH_CHECK(status == cudaSuccess, "msda::", operation, ": ", cudaGetErrorString(status),
                  " for N=", problem.batch_size, " S=", problem.num_cells, " M=", problem.num_heads,
                  " D=", problem.head_dim, " Q=", problem.num_queries, " K=", problem.total_points,
                  " ", msda::name(problem.value_type));
}
#endif

// Runs the forward kernel of the tensors' device. The tensors are contiguous.
Tensor run_forward(const msda::Problem& problem, msda::ForwardArguments arguments,
                   const Tensor& value) {
  Tensor output = torch::stable::new_empty(
      value, {problem.batch_size, problem.num_queries, problem.num_heads * problem.head_dim});
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

msda::ForwardArguments make_arguments(const Tensor& value, const Tensor& spatial_shapes,
                                      const Tensor& level_start_index, const Tensor& locations,
                                      const Tensor& weights) {
  msda::ForwardArguments arguments;
  arguments.value = value.const_data_ptr();
  arguments.spatial_shapes = spatial_shapes.const_data_ptr();
  arguments.level_start_index = level_start_index.const_data_ptr();
  arguments.sampling_locations = locations.const_data_ptr();
  arguments.attention_weights = weights.const_data_ptr();
  return arguments;
}

Tensor attention(Tensor value, Tensor spatial_shapes, Tensor level_start_index,
                 Tensor sampling_locations, Tensor attention_weights,
                 PointsPerLevel points_per_level) {
  const msda::Problem problem =
      make_problem(value, spatial_shapes, level_start_index, std::nullopt, "sampling_locations",
                   sampling_locations, "attention_weights", attention_weights, points_per_level);
  value = torch::stable::contiguous(value);
  spatial_shapes = torch::stable::contiguous(spatial_shapes);
  level_start_index = torch::stable::contiguous(level_start_index);
  sampling_locations = torch::stable::contiguous(sampling_locations);
  attention_weights = torch::stable::contiguous(attention_weights);
  return run_forward(problem,
                     make_arguments(value, spatial_shapes, level_start_index, sampling_locations,
                                    attention_weights),
                     value);
}

Tensor fused_attention(Tensor value, Tensor spatial_shapes, Tensor level_start_index,
                       Tensor reference_points, Tensor sampling_offsets, Tensor attention_logits,
                       PointsPerLevel points_per_level) {
  const msda::Problem problem =
      make_problem(value, spatial_shapes, level_start_index, reference_points, "sampling_offsets",
                   sampling_offsets, "attention_logits", attention_logits, points_per_level);
  value = torch::stable::contiguous(value);
  spatial_shapes = torch::stable::contiguous(spatial_shapes);
  level_start_index = torch::stable::contiguous(level_start_index);
  reference_points = torch::stable::contiguous(reference_points);
  sampling_offsets = torch::stable::contiguous(sampling_offsets);
  attention_logits = torch::stable::contiguous(attention_logits);
  msda::ForwardArguments arguments =
      make_arguments(value, spatial_shapes, level_start_index, sampling_offsets, attention_logits);
  arguments.reference_points = reference_points.const_data_ptr();
  return run_forward(problem, arguments, value);
}

std::tuple<Tensor, Tensor, Tensor> attention_backward(
    Tensor grad_output, Tensor value, Tensor spatial_shapes, Tensor level_start_index,
    Tensor sampling_locations, Tensor attention_weights, PointsPerLevel points_per_level) {
  const msda::Problem problem =
      make_problem(value, spatial_shapes, level_start_index, std::nullopt, "sampling_locations",
                   sampling_locations, "attention_weights", attention_weights, points_per_level);
  check_shape("grad_output", grad_output,
              {problem.batch_size, problem.num_queries, problem.num_heads * problem.head_dim});
  check_device("grad_output", grad_output, value);
  STD_TORCH_CHECK(grad_output.scalar_type() == value.scalar_type(),
                  "grad_output: expected the type of value");
  grad_output = torch::stable::contiguous(grad_output);
  value = torch::stable::contiguous(value);
  spatial_shapes = torch::stable::contiguous(spatial_shapes);
  level_start_index = torch::stable::contiguous(level_start_index);
  sampling_locations = torch::stable::contiguous(sampling_locations);
  attention_weights = torch::stable::contiguous(attention_weights);

  if (problem.empty()) {
    // Nothing is launched; heads without channels have locations and weights nevertheless.
    return {torch::stable::new_zeros(value, value.sizes()),
            torch::stable::new_zeros(sampling_locations, sampling_locations.sizes()),
            torch::stable::new_zeros(attention_weights, attention_weights.sizes())};
  }
  const ScalarType sum_type =
      problem.value_type == msda::DataType::kFloat64 ? ScalarType::Double : ScalarType::Float;
  const Tensor grad_value = torch::stable::new_zeros(value, value.sizes(), sum_type);
  const Tensor grad_locations =
      torch::stable::new_empty(sampling_locations, sampling_locations.sizes());
  const Tensor grad_weights =
      torch::stable::new_empty(attention_weights, attention_weights.sizes());
  msda::BackwardArguments arguments;
  arguments.forward = make_arguments(value, spatial_shapes, level_start_index, sampling_locations,
                                     attention_weights);
  arguments.grad_output = grad_output.const_data_ptr();
  arguments.grad_value = grad_value.mutable_data_ptr();
  arguments.grad_sampling_locations = grad_locations.mutable_data_ptr();
  arguments.grad_attention_weights = grad_weights.mutable_data_ptr();

  const auto result = [&] {
    return std::make_tuple(torch::stable::to(grad_value, value.scalar_type()), grad_locations,
                           grad_weights);
  };
#ifdef MSDA_WITH_CUDA
  if (value.is_cuda()) {
    const torch::stable::accelerator::DeviceGuard guard(value.get_device_index());
    check_launch("backward", msda::backward(problem, arguments, current_stream(value)), problem);
    return result();
  }
#endif
  const int64_t heads = problem.batch_size * problem.num_heads;
  dispatch_cpu(problem.value_type, [&](auto zero) {
    torch::stable::parallel_for(0, heads, 1, [&](int64_t first, int64_t last) {
      msda::cpu::backward<decltype(zero)>(problem, arguments, first, last);
    });
  });
  return result();
}

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
      "int[]? points_per_level=None) -> (Tensor, Tensor, Tensor)");
}

STABLE_TORCH_LIBRARY_IMPL(msda, CPU, library) {
  library.impl("attention", TORCH_BOX(&attention));
  library.impl("fused_attention", TORCH_BOX(&fused_attention));
  library.impl("attention_backward", TORCH_BOX(&attention_backward));
}

#ifdef MSDA_WITH_CUDA
STABLE_TORCH_LIBRARY_IMPL(msda, CUDA, library) {
  library.impl("attention", TORCH_BOX(&attention));
  library.impl("fused_attention", TORCH_BOX(&fused_attention));
  library.impl("attention_backward", TORCH_BOX(&attention_backward));
}
#endif
