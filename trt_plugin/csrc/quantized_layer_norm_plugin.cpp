#include "quantized_layer_norm_plugin.h"

#include <stdexcept>
#include <string>

#include "msda/launchers.h"
#include "tensors.h"

namespace msda::trt {
namespace {

using nvinfer1::DataType;
using nvinfer1::Dims;

constexpr int32_t kCount = 3;
constexpr char const* kInputs[kCount] = {"x", "weight", "bias"};
constexpr char const* kShapes[kCount] = {"[..., C]", "[C]", "[C]"};

void check_count(int32_t count) {
  if (count == kCount) return;
  throw std::invalid_argument("expected 3 inputs (x, weight, bias), got " + std::to_string(count));
}

[[noreturn]] void fail(int32_t index, std::string const& because, Dims const& dims) {
  fail_shape(kInputs[index], kShapes[index], because, dims);
}

}  // namespace

QuantizedLayerNormPlugin::QuantizedLayerNormPlugin(float eps, int32_t output_type, float scale)
    : Plugin(kQuantizedLayerNorm, "eps=" + number_text(eps) + " output_type=" +
                                      std::to_string(output_type) + " scale=" + number_text(scale)),
      eps_(eps),
      output_type_(output_type),
      scale_(scale) {
  if (output_type != kOnnxInt8 && output_type != kOnnxFloat8) {
    throw std::invalid_argument("output_type: expected 3 (int8) or 17 (float8), got " +
                                std::to_string(output_type));
  }
  check_message(check(empty_problem()));
}

bool QuantizedLayerNormPlugin::accepts_count(int32_t num_inputs) const {
  return num_inputs == kCount;
}

DataType QuantizedLayerNormPlugin::output_type(DataType /*first*/) const {
  return output_type_ == kOnnxInt8 ? DataType::kINT8 : DataType::kFP8;
}

void QuantizedLayerNormPlugin::check_types(DataType const* types, int32_t count) const {
  check_count(count);
  check_one_type(kInputs, types, count);
}

void QuantizedLayerNormPlugin::check_sizes(Dims const* dims, int32_t count) const {
  check_count(count);
  if (dims[0].nbDims < 1) fail(0, "", dims[0]);
  const int64_t channels = dims[0].d[dims[0].nbDims - 1];
  for (int32_t i = 1; i < count; ++i) {
    if (dims[i].nbDims != 1) fail(i, "", dims[i]);
    if (differ(channels, dims[i].d[0])) {
      fail(i, " with C=" + std::to_string(channels) + " (from x)", dims[i]);
    }
  }
}

void QuantizedLayerNormPlugin::check_problem(nvinfer1::PluginTensorDesc const* inputs,
                                             int32_t count) const {
  read_problem(inputs, count);
}

QuantizedLayerNormProblem QuantizedLayerNormPlugin::empty_problem() const {
  QuantizedLayerNormProblem problem;
  problem.eps = eps_;
  problem.output_type = output_type_ == kOnnxInt8 ? EightBits::kInt8 : EightBits::kFloat8;
  problem.scale = scale_;
  return problem;
}

QuantizedLayerNormProblem QuantizedLayerNormPlugin::read_problem(
    nvinfer1::PluginTensorDesc const* inputs, int32_t count) const {
  check_inputs(inputs, count);
  Dims const& x = inputs[0].dims;
  QuantizedLayerNormProblem problem = empty_problem();
  problem.rows = 1;
  for (int32_t i = 0; i + 1 < x.nbDims; ++i) problem.rows *= x.d[i];
  problem.channels = x.d[x.nbDims - 1];
  problem.type = convert(inputs[0].type);
  check_message(check(problem));
  return problem;
}

void QuantizedLayerNormPlugin::set_output_shape(nvinfer1::DimsExprs const* inputs,
                                                nvinfer1::DimsExprs& output,
                                                nvinfer1::IExprBuilder& /*expressions*/) const {
  output = inputs[0];
}

void QuantizedLayerNormPlugin::launch(nvinfer1::PluginTensorDesc const* descriptions,
                                      int32_t /*count*/, void const* const* inputs, void* output,
                                      void* /*work*/, cudaStream_t stream) const {
  const QuantizedLayerNormProblem problem = read_problem(descriptions, kCount);
  const QuantizedLayerNormArguments arguments{inputs[0], inputs[1], inputs[2], output};
  check_launch(quantized_layer_norm(problem, arguments, stream),
               "M=" + std::to_string(problem.rows) + " C=" + std::to_string(problem.channels) +
                   " " + msda::name(problem.type) + " to " + msda::name(problem.output_type));
}

std::vector<nvinfer1::PluginField> QuantizedLayerNormPlugin::fields() const {
  constexpr auto kFloat32 = nvinfer1::PluginFieldType::kFLOAT32;
  return {{kEps, &eps_, kFloat32, 1},
          {kOutputType, &output_type_, nvinfer1::PluginFieldType::kINT32, 1},
          {kScale, &scale_, kFloat32, 1}};
}

}  // namespace msda::trt
