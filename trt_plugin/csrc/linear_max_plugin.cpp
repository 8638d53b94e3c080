#include "linear_max_plugin.h"

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
constexpr char const* kShapes[kCount] = {"[..., K]", "[N, K]", "[N]"};

void check_count(int32_t count) {
  if (count == kCount) return;
  throw std::invalid_argument("expected 3 inputs (x, weight, bias), got " + std::to_string(count));
}

[[noreturn]] void fail(int32_t index, std::string const& because, Dims const& dims) {
  fail_shape(kInputs[index], kShapes[index], because, dims);
}

}  // namespace

bool LinearMaxPlugin::accepts_count(int32_t num_inputs) const { return num_inputs == kCount; }

bool LinearMaxPlugin::accepts_type(int32_t index, DataType const* types) const {
  return index == 0 ? is_floating(types[0]) : types[index] == DataType::kFLOAT;
}

void LinearMaxPlugin::check_types(DataType const* types, int32_t count) const {
  check_count(count);
  for (int32_t i = 0; i < count; ++i) {
    if (accepts_type(i, types)) continue;
    const std::string expected = i == 0 ? "float32, float16 or bfloat16" : "float32";
    throw std::invalid_argument(std::string(kInputs[i]) + ": expected " + expected + ", got " +
                                type_name(types[i]));
  }
}

void LinearMaxPlugin::check_sizes(Dims const* dims, int32_t count) const {
  check_count(count);
  if (dims[0].nbDims < 1) fail(0, "", dims[0]);
  const int64_t inputs = dims[0].d[dims[0].nbDims - 1];
  if (dims[1].nbDims != 2) fail(1, "", dims[1]);
  if (differ(inputs, dims[1].d[1])) {
    fail(1, " with K=" + std::to_string(inputs) + " (from x)", dims[1]);
  }
  const int64_t outputs = dims[1].d[0];
  if (outputs == 0) fail(1, " with N of 1 or more", dims[1]);
  if (dims[2].nbDims != 1) fail(2, "", dims[2]);
  if (differ(outputs, dims[2].d[0])) {
    fail(2, " with N=" + std::to_string(outputs) + " (from weight)", dims[2]);
  }
}

void LinearMaxPlugin::check_problem(nvinfer1::PluginTensorDesc const* inputs, int32_t count) const {
  read_problem(inputs, count);
}

LinearMaxProblem LinearMaxPlugin::read_problem(nvinfer1::PluginTensorDesc const* inputs,
                                               int32_t count) const {
  check_inputs(inputs, count);
  Dims const& x = inputs[0].dims;
  LinearMaxProblem problem{1, x.d[x.nbDims - 1], inputs[1].dims.d[0], convert(inputs[0].type)};
  for (int32_t i = 0; i + 1 < x.nbDims; ++i) problem.rows *= x.d[i];
  check_message(check(problem));
  return problem;
}

void LinearMaxPlugin::set_output_shape(nvinfer1::DimsExprs const* inputs,
                                       nvinfer1::DimsExprs& output,
                                       nvinfer1::IExprBuilder& /*expressions*/) const {
  output = inputs[0];
  --output.nbDims;
}

void LinearMaxPlugin::launch(nvinfer1::PluginTensorDesc const* descriptions, int32_t /*count*/,
                             void const* const* inputs, void* output, void* /*work*/,
                             cudaStream_t stream) const {
  const LinearMaxProblem problem = read_problem(descriptions, kCount);
  const LinearMaxArguments arguments{inputs[0], inputs[1], inputs[2], output};
  check_launch(linear_max(problem, arguments, stream),
               "M=" + std::to_string(problem.rows) + " K=" + std::to_string(problem.inputs) +
                   " N=" + std::to_string(problem.outputs) + " " + msda::name(problem.type));
}

}  // namespace msda::trt
