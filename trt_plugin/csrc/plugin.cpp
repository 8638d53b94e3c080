#include "plugin.h"

#include <algorithm>
#include <stdexcept>
#include <utility>

#include "msda/launchers.h"
#include "report.h"
#include "tensors.h"

namespace msda::trt {

Plugin::Plugin(char const* name, std::string description)
    : name_(name),
      description_(std::move(description)),
      timing_cache_id_(std::string(name) + " " + kVersion + " " + description_) {}

nvinfer1::IPluginCapability* Plugin::getCapabilityInterface(
    nvinfer1::PluginCapabilityType type) noexcept {
  switch (type) {
    case nvinfer1::PluginCapabilityType::kCORE:
      return static_cast<nvinfer1::IPluginV3OneCore*>(this);
    case nvinfer1::PluginCapabilityType::kBUILD:
      return static_cast<nvinfer1::IPluginV3OneBuild*>(this);
    case nvinfer1::PluginCapabilityType::kRUNTIME:
      return static_cast<nvinfer1::IPluginV3OneRuntime*>(this);
  }
  return nullptr;
}

nvinfer1::IPluginV3* Plugin::clone() noexcept {
  nvinfer1::IPluginV3* result = nullptr;
  guarded(name_, [&] { result = copy(); });
  return result;
}

int32_t Plugin::getOutputDataTypes(nvinfer1::DataType* output_types, int32_t num_outputs,
                                   nvinfer1::DataType const* input_types,
                                   int32_t num_inputs) const noexcept {
  return guarded(name_, [&] {
    check_types(input_types, num_inputs);
    if (num_outputs != 1) throw std::invalid_argument("expected one output");
    if (!declared_type_) declared_type_ = input_types[0];
    output_types[0] = output_type(input_types[0]);
  });
}

int32_t Plugin::getOutputShapes(nvinfer1::DimsExprs const* inputs, int32_t num_inputs,
                                nvinfer1::DimsExprs const* /*shape_inputs*/,
                                int32_t /*num_shape_inputs*/, nvinfer1::DimsExprs* outputs,
                                int32_t num_outputs, nvinfer1::IExprBuilder& expressions) noexcept {
  return guarded(name_, [&] {
    std::vector<nvinfer1::Dims> dims;
    for (int32_t i = 0; i < num_inputs; ++i) dims.push_back(constant_part(inputs[i]));
    check_sizes(dims.data(), num_inputs);
    if (num_outputs != 1) throw std::invalid_argument("expected one output");
    set_output_shape(inputs, outputs[0], expressions);
    num_inputs_ = num_inputs;
  });
}

bool Plugin::supportsFormatCombination(int32_t position,
                                       nvinfer1::DynamicPluginTensorDesc const* in_out,
                                       int32_t num_inputs, int32_t num_outputs) noexcept {
  if (!accepts_count(num_inputs) || num_outputs != 1) return false;
  if (position < 0 || position > num_inputs) return false;
  if (in_out[position].desc.format != nvinfer1::TensorFormat::kLINEAR) return false;
  nvinfer1::DataType types[kMaxInputs + 1];
  for (int32_t i = 0; i <= position; ++i) types[i] = in_out[i].desc.type;
  if (position == num_inputs) return types[position] == output_type(types[0]);
  if (!accepts_type(position, types)) return false;
  if (position == 0 && declared_type_ && *declared_type_ != nvinfer1::DataType::kFLOAT) {
    // A weakly typed build times the plugin alone with each supported type, without the conversions
    // around it. It has therefore chosen the fp32 kernel for a 16-bit network.
    return types[0] == *declared_type_;
  }
  return true;
}

namespace {

// Returns a bound of an input's sizes. TensorRT gives a bound without sizes where it knows none.
nvinfer1::Dims const& known(nvinfer1::DynamicPluginTensorDesc const& input,
                            nvinfer1::Dims const& bound) {
  return bound.nbDims > 0 ? bound : input.desc.dims;
}

}  // namespace

int32_t Plugin::configurePlugin(nvinfer1::DynamicPluginTensorDesc const* inputs, int32_t num_inputs,
                                nvinfer1::DynamicPluginTensorDesc const* /*outputs*/,
                                int32_t /*num_outputs*/) noexcept {
  return guarded(name_, [&] {
    std::vector<nvinfer1::DataType> types;
    std::vector<nvinfer1::Dims> declared, smallest, typical, largest;
    for (int32_t i = 0; i < num_inputs; ++i) {
      types.push_back(inputs[i].desc.type);
      declared.push_back(inputs[i].desc.dims);
      smallest.push_back(known(inputs[i], inputs[i].min));
      typical.push_back(known(inputs[i], inputs[i].opt));
      largest.push_back(known(inputs[i], inputs[i].max));
    }
    check_types(types.data(), num_inputs);
    for (auto const* dims : {&declared, &smallest, &typical, &largest}) {
      check_sizes(dims->data(), num_inputs);
    }
    num_inputs_ = num_inputs;
  });
}

size_t Plugin::getWorkspaceSize(nvinfer1::DynamicPluginTensorDesc const* inputs, int32_t num_inputs,
                                nvinfer1::DynamicPluginTensorDesc const* /*outputs*/,
                                int32_t /*num_outputs*/) const noexcept {
  size_t bytes = 0;
  guarded(name_, [&] {
    std::vector<nvinfer1::PluginTensorDesc> largest;
    for (int32_t i = 0; i < num_inputs; ++i) {
      largest.push_back(inputs[i].desc);
      largest.back().dims = known(inputs[i], inputs[i].max);
    }
    bytes = work_bytes(largest.data(), num_inputs);
  });
  return bytes;
}

bool Plugin::accepts_type(int32_t index, nvinfer1::DataType const* types) const {
  return is_like_first(index, types);
}

void Plugin::check_inputs(nvinfer1::PluginTensorDesc const* inputs, int32_t count) const {
  nvinfer1::DataType types[kMaxInputs];
  nvinfer1::Dims dims[kMaxInputs];
  // check_types refuses another count than the operator's, and so reads no more than these.
  for (int32_t i = 0; i < std::min(count, kMaxInputs); ++i) {
    types[i] = inputs[i].type;
    dims[i] = inputs[i].dims;
  }
  check_types(types, count);
  check_sizes(dims, count);
}

int32_t Plugin::onShapeChange(nvinfer1::PluginTensorDesc const* inputs, int32_t num_inputs,
                              nvinfer1::PluginTensorDesc const* /*outputs*/,
                              int32_t /*num_outputs*/) noexcept {
  return guarded(name_, [&] {
    check_problem(inputs, num_inputs);
    num_inputs_ = num_inputs;
  });
}

int32_t Plugin::enqueue(nvinfer1::PluginTensorDesc const* input_descriptions,
                        nvinfer1::PluginTensorDesc const* /*output_descriptions*/,
                        void const* const* inputs, void* const* outputs, void* workspace,
                        cudaStream_t stream) noexcept {
  return guarded(name_, [&] {
    launch(input_descriptions, num_inputs_, inputs, outputs[0], workspace, stream);
  });
}

nvinfer1::IPluginV3* Plugin::attachToContext(
    nvinfer1::IPluginResourceContext* /*context*/) noexcept {
  return clone();
}

nvinfer1::PluginFieldCollection const* Plugin::getFieldsToSerialize() noexcept {
  const int32_t status = guarded(name_, [&] { serialized_ = fields(); });
  if (status != 0) return nullptr;
  collection_ = {static_cast<int32_t>(serialized_.size()), serialized_.data()};
  return &collection_;
}

void Plugin::check_launch(cudaError_t status, std::string const& problem) {
  if (status == cudaSuccess) return;
  const std::string complaint = check_environment();
  if (!complaint.empty()) throw std::runtime_error(complaint);
  throw std::runtime_error(std::string("the kernel could not be launched: ") +
                           cudaGetErrorString(status) + " (" + problem + ")");
}

}  // namespace msda::trt
