#include "quantized_linear_plugin.h"

#include <stdexcept>
#include <string>

#include "msda/launchers.h"
#include "tensors.h"

namespace msda::trt {
namespace {

using nvinfer1::DataType;
using nvinfer1::Dims;

constexpr int32_t kCount = 6;
constexpr char const* kInputs[kCount] = {"x", "weight", "scale", "bias", "residual", "mask"};
constexpr char const* kShapes[kCount] = {"[..., K]", "[N, K/4]", "[N]",
                                         "[N]",      "[..., N]", "[..., 1]"};

std::string describe(QuantizedLinearProblem const& problem) {
  return "M=" + std::to_string(problem.rows) + " K=" + std::to_string(problem.inputs) +
         " N=" + std::to_string(problem.outputs) +
         " activation=" + std::to_string(static_cast<int32_t>(problem.activation)) +
         " residual=" + std::to_string(problem.residual) +
         " mask=" + std::to_string(problem.masked) + " " + msda::name(problem.input_type) + " to " +
         (problem.quantized_output ? msda::name(problem.input_type) : msda::name(problem.type));
}

void check_count(int32_t count) {
  if (count == kCount) return;
  throw std::invalid_argument("expected 6 inputs (x, weight, scale, bias, residual, mask), got " +
                              std::to_string(count));
}

[[noreturn]] void fail(int32_t index, std::string const& because, Dims const& dims) {
  fail_shape(kInputs[index], kShapes[index], because, dims);
}

std::string fields_text(Activation activation, bool add_residual, bool multiply_mask,
                        int32_t output_type, float output_scale) {
  return "activation=" + std::to_string(static_cast<int32_t>(activation)) +
         " add_residual=" + std::to_string(add_residual) +
         " multiply_mask=" + std::to_string(multiply_mask) +
         " output_type=" + std::to_string(output_type) +
         " output_scale=" + std::to_string(output_scale);
}

}  // namespace

QuantizedLinearPlugin::QuantizedLinearPlugin(Activation activation, bool add_residual,
                                             bool multiply_mask, int32_t output_type,
                                             float output_scale)
    : Plugin(kQuantizedLinear,
             fields_text(activation, add_residual, multiply_mask, output_type, output_scale)),
      activation_(static_cast<int32_t>(activation)),
      add_residual_(add_residual),
      multiply_mask_(multiply_mask),
      output_type_(output_type),
      output_scale_(output_scale) {}

bool QuantizedLinearPlugin::accepts_count(int32_t num_inputs) const { return num_inputs == kCount; }

bool QuantizedLinearPlugin::accepts_type(int32_t index, DataType const* types) const {
  const DataType type = types[index];
  const auto is_result = [&] {
    if (quantized()) return type == DataType::kHALF || type == DataType::kBF16;
    return type == output_type(types[0]);
  };
  switch (index) {
    case 0:
      if (quantized()) {
        return type == (output_type_ == kOnnxInt8 ? DataType::kINT8 : DataType::kFP8);
      }
      return type == DataType::kINT8 || type == DataType::kFP8;
    case 1:
      return type == DataType::kINT32;
    case 4:
      return add_residual_ == 1 ? is_result() : type == DataType::kFLOAT;
    case 5:
      if (multiply_mask_ == 0) return type == DataType::kFLOAT;
      return add_residual_ == 1 ? type == types[4] : is_result();
    default:
      return type == DataType::kFLOAT;
  }
}

DataType QuantizedLinearPlugin::output_type(DataType first) const {
  return output_type_ == kOnnxFloat16    ? DataType::kHALF
         : output_type_ == kOnnxBFloat16 ? DataType::kBF16
                                         : first;
}

void QuantizedLinearPlugin::check_types(DataType const* types, int32_t count) const {
  check_count(count);
  for (int32_t i = 0; i < count; ++i) {
    if (accepts_type(i, types)) continue;
    std::string expected = i == 1 ? "int32, four numbers of 8 bits each" : "float32";
    if (i == 0) {
      expected = output_type_ == kOnnxInt8     ? "int8 (output_type)"
                 : output_type_ == kOnnxFloat8 ? "float8_e4m3 (output_type)"
                                               : "int8 or float8_e4m3";
    } else if ((i == 4 && add_residual_ == 1) || (i == 5 && multiply_mask_ == 1)) {
      expected = i == 5 && add_residual_ == 1 ? type_name(types[4]) + " (as residual)"
                 : quantized()                ? "float16 or bfloat16"
                                              : type_name(output_type(types[0])) + " (output_type)";
    }
    throw std::invalid_argument(std::string(kInputs[i]) + ": expected " + expected + ", got " +
                                type_name(types[i]));
  }
}

void QuantizedLinearPlugin::check_sizes(Dims const* dims, int32_t count) const {
  check_count(count);
  Dims const &x = dims[0], &weight = dims[1];
  if (x.nbDims < 1) fail(0, "", x);
  if (weight.nbDims != 2) fail(1, "", weight);
  const int64_t inputs = x.d[x.nbDims - 1], outputs = weight.d[0];
  if (inputs >= 0 && weight.d[1] >= 0 && weight.d[1] * 4 != inputs) {
    fail(1, " with K=" + std::to_string(inputs) + " (from x)", weight);
  }
  const std::string columns = " with N=" + std::to_string(outputs) + " (from weight)";
  for (const int32_t i : {2, 3}) {
    if (dims[i].nbDims != 1 || differ(dims[i].d[0], outputs)) fail(i, columns, dims[i]);
  }
  if (add_residual_ == 1) check_rows(kInputs[4], kShapes[4], dims[4], x, outputs, columns);
  if (multiply_mask_ == 1) check_rows(kInputs[5], kShapes[5], dims[5], x, 1, "");
}

void QuantizedLinearPlugin::check_problem(nvinfer1::PluginTensorDesc const* inputs,
                                          int32_t count) const {
  read_problem(inputs, count);
}

QuantizedLinearProblem QuantizedLinearPlugin::read_problem(nvinfer1::PluginTensorDesc const* inputs,
                                                           int32_t count) const {
  check_inputs(inputs, count);
  Dims const &x = inputs[0].dims, &weight = inputs[1].dims;
  QuantizedLinearProblem problem;
  problem.rows = 1;
  for (int32_t axis = 0; axis + 1 < x.nbDims; ++axis) problem.rows *= x.d[axis];
  problem.inputs = x.d[x.nbDims - 1];
  problem.outputs = weight.d[0];
  problem.activation = static_cast<Activation>(activation_);
  problem.residual = add_residual_ == 1;
  problem.masked = multiply_mask_ == 1;
  problem.quantized_output = quantized();
  problem.input_type = inputs[0].type == DataType::kINT8 ? EightBits::kInt8 : EightBits::kFloat8;
  const DataType wide = !quantized()       ? output_type(inputs[0].type)
                        : problem.residual ? inputs[4].type
                        : problem.masked   ? inputs[5].type
                                           : DataType::kHALF;
  problem.type = convert(wide);
  problem.output_scale = quantized() ? output_scale_ : 1;
  check_message(check(problem));
  return problem;
}

void QuantizedLinearPlugin::set_output_shape(nvinfer1::DimsExprs const* inputs,
                                             nvinfer1::DimsExprs& output,
                                             nvinfer1::IExprBuilder& /*expressions*/) const {
  output = inputs[0];  // [..., N]
  output.d[output.nbDims - 1] = inputs[1].d[0];
}

void QuantizedLinearPlugin::launch(nvinfer1::PluginTensorDesc const* descriptions,
                                   int32_t /*count*/, void const* const* inputs, void* output,
                                   void* /*work*/, cudaStream_t stream) const {
  const QuantizedLinearProblem problem = read_problem(descriptions, kCount);
  const QuantizedLinearArguments arguments{inputs[0],
                                           inputs[1],
                                           inputs[2],
                                           inputs[3],
                                           problem.residual ? inputs[4] : nullptr,
                                           problem.masked ? inputs[5] : nullptr,
                                           output};
  check_launch(quantized_linear(problem, arguments, stream), describe(problem));
}

std::vector<nvinfer1::PluginField> QuantizedLinearPlugin::fields() const {
  constexpr auto kInt32 = nvinfer1::PluginFieldType::kINT32;
  return {{kActivation, &activation_, kInt32, 1},
          {kAddResidual, &add_residual_, kInt32, 1},
          {kMultiplyMask, &multiply_mask_, kInt32, 1},
          {kOutputType, &output_type_, kInt32, 1},
          {kOutputScale, &output_scale_, nvinfer1::PluginFieldType::kFLOAT32, 1}};
}

}  // namespace msda::trt
