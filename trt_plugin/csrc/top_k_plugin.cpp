#include "top_k_plugin.h"

#include <stdexcept>
#include <string>

#include "msda/launchers.h"
#include "tensors.h"

namespace msda::trt {

TopKPlugin::TopKPlugin(int32_t count)
    : Plugin(kTopKIndices, "count=" + std::to_string(count)), count_(count) {}

bool TopKPlugin::accepts_type(int32_t index, nvinfer1::DataType const* types) const {
  return types[index] == nvinfer1::DataType::kFLOAT;
}

void TopKPlugin::check_types(nvinfer1::DataType const* types, int32_t count) const {
  if (count != 1) {
    throw std::invalid_argument("expected 1 input (x), got " + std::to_string(count));
  }
  if (accepts_type(0, types)) return;
  throw std::invalid_argument("x: expected float32, got " + type_name(types[0]));
}

void TopKPlugin::check_sizes(nvinfer1::Dims const* dims, int32_t /*count*/) const {
  if (dims[0].nbDims != 2) fail_shape("x", "[N, S]", "", dims[0]);
  if (dims[0].d[1] >= 0 && dims[0].d[1] < count_) {
    fail_shape("x", "[N, S]", " with S of at least count=" + std::to_string(count_), dims[0]);
  }
}

void TopKPlugin::check_problem(nvinfer1::PluginTensorDesc const* inputs, int32_t count) const {
  read_problem(inputs, count);
}

TopKProblem TopKPlugin::read_problem(nvinfer1::PluginTensorDesc const* inputs,
                                     int32_t num_inputs) const {
  check_inputs(inputs, num_inputs);
  const TopKProblem problem{inputs[0].dims.d[0], inputs[0].dims.d[1], count_};
  check_message(check(problem));
  return problem;
}

void TopKPlugin::set_output_shape(nvinfer1::DimsExprs const* inputs, nvinfer1::DimsExprs& output,
                                  nvinfer1::IExprBuilder& expressions) const {
  output.nbDims = 2;
  output.d[0] = inputs[0].d[0];
  output.d[1] = expressions.constant(count_);
}

size_t TopKPlugin::work_bytes(nvinfer1::PluginTensorDesc const* largest, int32_t count) const {
  return top_k_work(read_problem(largest, count));
}

void TopKPlugin::launch(nvinfer1::PluginTensorDesc const* descriptions, int32_t /*count*/,
                        void const* const* inputs, void* output, void* work,
                        cudaStream_t stream) const {
  const TopKProblem problem = read_problem(descriptions, 1);
  const TopKArguments arguments{static_cast<float const*>(inputs[0]), static_cast<int32_t*>(output),
                                work};
  check_launch(top_k(problem, arguments, stream), "N=" + std::to_string(problem.rows) +
                                                      " S=" + std::to_string(problem.size) +
                                                      " count=" + std::to_string(count_));
}

std::vector<nvinfer1::PluginField> TopKPlugin::fields() const {
  return {{kTopKCount, &count_, nvinfer1::PluginFieldType::kINT32, 1}};
}

}  // namespace msda::trt
