#include "linear_plugin.h"

#include <stdexcept>
#include <string>

#include "group_norm_plugin.h"
#include "msda/launchers.h"
#include "tensors.h"

namespace msda::trt {
namespace {

using nvinfer1::Dims;

constexpr int32_t kCount = 7;
constexpr char const* kInputs[kCount] = {"x",    "weight",      "bias",     "residual",
                                         "mask", "norm_weight", "norm_bias"};
constexpr char const* kShapes[kCount] = {"[..., K]", "[N, K]", "[N]", "[..., N]",
                                         "[..., 1]", "[N]",    "[N]"};

std::string describe(LinearProblem const& problem) {
  return "M=" + std::to_string(problem.rows) + " K=" + std::to_string(problem.inputs) +
         " N=" + std::to_string(problem.outputs) +
         " activation=" + std::to_string(static_cast<int32_t>(problem.activation)) +
         " residual=" + std::to_string(problem.residual) +
         " mask=" + std::to_string(problem.masked) + " norm=" + std::to_string(problem.normed) +
         " " + msda::name(problem.type);
}

void check_count(int32_t count) {
  if (count == kCount) return;
  throw std::invalid_argument(
      "expected 7 inputs (x, weight, bias, residual, mask, norm_weight, norm_bias), got " +
      std::to_string(count));
}

[[noreturn]] void fail(int32_t index, std::string const& because, Dims const& dims) {
  fail_shape(kInputs[index], kShapes[index], because, dims);
}

}  // namespace

LinearPlugin::LinearPlugin(Activation activation, bool add_residual, bool multiply_mask,
                           bool normalise, float eps)
    : Plugin(kLinear, "activation=" + std::to_string(static_cast<int32_t>(activation)) +
                          " add_residual=" + std::to_string(add_residual) +
                          " multiply_mask=" + std::to_string(multiply_mask) +
                          " normalise=" + std::to_string(normalise) + " eps=" + number_text(eps)),
      activation_(static_cast<int32_t>(activation)),
      add_residual_(add_residual),
      multiply_mask_(multiply_mask),
      normalise_(normalise),
      eps_(eps) {
  check_message(check(options()));
}

bool LinearPlugin::accepts_count(int32_t num_inputs) const {
  static_assert(kCount <= kMaxInputs);
  return num_inputs == kCount;
}

void LinearPlugin::check_types(nvinfer1::DataType const* types, int32_t count) const {
  check_count(count);
  check_one_type(kInputs, types, count);
}

void LinearPlugin::check_sizes(Dims const* dims, int32_t count) const {
  check_count(count);
  Dims const &x = dims[0], &weight = dims[1], &bias = dims[2];
  if (x.nbDims < 1) fail(0, "", x);
  if (weight.nbDims != 2) fail(1, "", weight);
  const int64_t inputs = x.d[x.nbDims - 1], outputs = weight.d[0];
  if (differ(weight.d[1], inputs)) {
    fail(1, " with K=" + std::to_string(inputs) + " (from x)", weight);
  }
  const std::string columns = " with N=" + std::to_string(outputs) + " (from weight)";
  if (bias.nbDims != 1 || differ(bias.d[0], outputs)) fail(2, columns, bias);
  if (add_residual_ == 1) check_rows(kInputs[3], kShapes[3], dims[3], x, outputs, columns);
  if (multiply_mask_ == 1) check_rows(kInputs[4], kShapes[4], dims[4], x, 1, "");
  for (int32_t i = 5; i < count && normalise_ == 1; ++i) {
    if (dims[i].nbDims != 1 || differ(dims[i].d[0], outputs)) fail(i, columns, dims[i]);
  }
}

void LinearPlugin::check_problem(nvinfer1::PluginTensorDesc const* inputs, int32_t count) const {
  read_problem(inputs, count);
}

LinearProblem LinearPlugin::options() const {
  LinearProblem problem;
  problem.activation = static_cast<Activation>(activation_);
  problem.residual = add_residual_ == 1;
  problem.masked = multiply_mask_ == 1;
  problem.normed = normalise_ == 1;
  problem.eps = eps_;
  return problem;
}

LinearProblem LinearPlugin::read_problem(nvinfer1::PluginTensorDesc const* inputs,
                                         int32_t count) const {
  check_inputs(inputs, count);
  Dims const &x = inputs[0].dims, &weight = inputs[1].dims;
  LinearProblem problem = options();
  problem.rows = 1;
  for (int32_t axis = 0; axis + 1 < x.nbDims; ++axis) problem.rows *= x.d[axis];
  problem.inputs = weight.d[1];
  problem.outputs = weight.d[0];
  problem.type = convert(inputs[0].type);
  check_message(check(problem));
  return problem;
}

void LinearPlugin::set_output_shape(nvinfer1::DimsExprs const* inputs, nvinfer1::DimsExprs& output,
                                    nvinfer1::IExprBuilder& /*expressions*/) const {
  output = inputs[0];  // [..., N]
  output.d[output.nbDims - 1] = inputs[1].d[0];
}

void LinearPlugin::launch(nvinfer1::PluginTensorDesc const* descriptions, int32_t /*count*/,
                          void const* const* inputs, void* output, void* /*work*/,
                          cudaStream_t stream) const {
  const LinearProblem problem = read_problem(descriptions, kCount);
  const LinearArguments arguments{inputs[0],
                                  inputs[1],
                                  inputs[2],
                                  problem.residual ? inputs[3] : nullptr,
                                  problem.masked ? inputs[4] : nullptr,
                                  problem.normed ? inputs[5] : nullptr,
                                  problem.normed ? inputs[6] : nullptr,
                                  output};
  check_launch(linear(problem, arguments, stream), describe(problem));
}

std::vector<nvinfer1::PluginField> LinearPlugin::fields() const {
  constexpr auto kInt32 = nvinfer1::PluginFieldType::kINT32;
  return {{kActivation, &activation_, kInt32, 1},
          {kAddResidual, &add_residual_, kInt32, 1},
          {kMultiplyMask, &multiply_mask_, kInt32, 1},
          {kNormalise, &normalise_, kInt32, 1},
          {kEps, &eps_, nvinfer1::PluginFieldType::kFLOAT32, 1}};
}

}  // namespace msda::trt
