#include "plugin.h"

#include <stdexcept>
#include <utility>

#include "msda/launchers.h"
#include "report.h"

namespace msda::trt {

Plugin::Plugin(char const* name, std::string description, std::vector<Input> inputs,
               bool last_is_optional)
    : num_inputs_(static_cast<int32_t>(inputs.size())),
      name_(name),
      description_(std::move(description)),
      timing_cache_id_(std::string(name) + " " + kVersion + " " + description_),
      inputs_(std::move(inputs)),
      last_is_optional_(last_is_optional) {}

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

int32_t Plugin::getOutputDataTypes(DataType* output_types, int32_t num_outputs,
                                   DataType const* input_types, int32_t num_inputs) const noexcept {
  return guarded(name_, [&] {
    check_count(num_inputs);
    check_types(input_types, num_inputs);
    check_outputs(num_outputs);
    if (!declared_type_) declared_type_ = input_types[0];
    for (int32_t i = 0; i < num_outputs; ++i) output_types[i] = output_type(i, input_types);
  });
}

int32_t Plugin::getOutputShapes(DimsExprs const* inputs, int32_t num_inputs,
                                DimsExprs const* /*shape_inputs*/, int32_t /*num_shape_inputs*/,
                                DimsExprs* outputs, int32_t num_outputs,
                                IExprBuilder& expressions) noexcept {
  return guarded(name_, [&] {
    check_count(num_inputs);
    std::vector<Dims> dims;
    for (int32_t i = 0; i < num_inputs; ++i) dims.push_back(constant_part(inputs[i]));
    check_sizes(dims.data(), num_inputs);
    check_outputs(num_outputs);
    for (int32_t i = 0; i < num_outputs; ++i) set_output_shape(inputs, outputs[i], expressions);
    num_inputs_ = num_inputs;
  });
}

bool Plugin::supportsFormatCombination(int32_t position,
                                       nvinfer1::DynamicPluginTensorDesc const* in_out,
                                       int32_t num_inputs, int32_t num_outputs) noexcept {
  if (!accepts_count(num_inputs) || num_outputs != getNbOutputs()) return false;
  if (position < 0 || position >= num_inputs + num_outputs) return false;
  PluginTensorDesc const& tensor = in_out[position].desc;
  if (tensor.format != format(tensor.dims, tensor.type)) return false;
  std::vector<DataType> types;
  for (int32_t i = 0; i <= position; ++i) types.push_back(in_out[i].desc.type);
  if (position >= num_inputs) {
    return types[position] == output_type(position - num_inputs, types.data());
  }
  if (!accepts_type(position, types.data())) return false;
  if (position == 0 && declared_type_ && *declared_type_ != DataType::kFLOAT) {
    // A weakly typed build times the plugin alone with each supported type, without the conversions
    // around it. It has therefore chosen the fp32 kernel for a 16-bit network.
    return types[0] == *declared_type_;
  }
  return true;
}

namespace {

// Returns a bound of an input's sizes. TensorRT gives a bound without sizes where it knows none.
Dims const& known(nvinfer1::DynamicPluginTensorDesc const& input, Dims const& bound) {
  return bound.nbDims > 0 ? bound : input.desc.dims;
}

}  // namespace

int32_t Plugin::configurePlugin(nvinfer1::DynamicPluginTensorDesc const* inputs, int32_t num_inputs,
                                nvinfer1::DynamicPluginTensorDesc const* /*outputs*/,
                                int32_t /*num_outputs*/) noexcept {
  return guarded(name_, [&] {
    check_count(num_inputs);
    std::vector<DataType> types;
    std::vector<Dims> declared, smallest, typical, largest;
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
    std::vector<PluginTensorDesc> largest;
    for (int32_t i = 0; i < num_inputs; ++i) {
      largest.push_back(inputs[i].desc);
      largest.back().dims = known(inputs[i], inputs[i].max);
    }
    bytes = work_bytes(largest.data(), num_inputs);
  });
  return bytes;
}

bool Plugin::accepts_count(int32_t count) const {
  const auto most = static_cast<int32_t>(inputs_.size());
  return count == most || (last_is_optional_ && count == most - 1);
}

void Plugin::check_count(int32_t count) const {
  if (accepts_count(count)) return;
  const size_t most = inputs_.size();
  std::string expected = last_is_optional_ ? std::to_string(most - 1) + " or " : "";
  expected += std::to_string(most) + (most == 1 ? " input (" : " inputs (");
  for (Input const& input : inputs_) {
    expected += (&input == &inputs_[0] ? "" : ", ") + input.name;
  }
  throw std::invalid_argument("expected " + expected + "), got " + std::to_string(count));
}

void Plugin::check_outputs(int32_t count) const {
  if (count == getNbOutputs()) return;
  throw std::invalid_argument("expected " + std::to_string(getNbOutputs()) + " outputs, got " +
                              std::to_string(count));
}

bool Plugin::accepts_type(int32_t index, DataType const* types) const {
  return index == 0 ? is_floating(types[0]) : types[index] == types[0];
}

std::string Plugin::expected_type(int32_t index, DataType const* types) const {
  if (index == 0) return "float32, float16 or bfloat16";
  return type_name(types[0]) + " (as " + inputs_[0].name + ")";
}

void Plugin::check_types(DataType const* types, int32_t count) const {
  for (int32_t i = 0; i < count; ++i) {
    if (accepts_type(i, types)) continue;
    throw std::invalid_argument(inputs_[i].name + ": expected " + expected_type(i, types) +
                                ", got " + type_name(types[i]));
  }
}

void Plugin::check_inputs(PluginTensorDesc const* inputs, int32_t count) const {
  check_count(count);
  std::vector<DataType> types(count);
  std::vector<Dims> dims(count);
  for (int32_t i = 0; i < count; ++i) {
    types[i] = inputs[i].type;
    dims[i] = inputs[i].dims;
  }
  check_types(types.data(), count);
  check_sizes(dims.data(), count);
}

void Plugin::fail(int32_t index, std::string const& because, Dims const& dims) const {
  fail_shape(inputs_[index].name.c_str(), inputs_[index].shape, because, dims);
}

void Plugin::check_rows(int32_t index, Dims const* dims, int64_t size,
                        std::string const& because) const {
  Dims const &x = dims[0], &tensor = dims[index];
  if (tensor.nbDims != x.nbDims || differ(last_size(tensor), size)) fail(index, because, tensor);
  for (int32_t axis = 0; axis + 1 < x.nbDims; ++axis) {
    if (differ(tensor.d[axis], x.d[axis])) fail(index, " with the other sizes of x", tensor);
  }
}

int32_t Plugin::onShapeChange(PluginTensorDesc const* inputs, int32_t num_inputs,
                              PluginTensorDesc const* /*outputs*/,
                              int32_t /*num_outputs*/) noexcept {
  return guarded(name_, [&] {
    check_problem(inputs, num_inputs);
    num_inputs_ = num_inputs;
  });
}

int32_t Plugin::enqueue(PluginTensorDesc const* input_descriptions,
                        PluginTensorDesc const* /*output_descriptions*/, void const* const* inputs,
                        void* const* outputs, void* workspace, cudaStream_t stream) noexcept {
  return guarded(name_, [&] { run(input_descriptions, inputs, outputs, workspace, stream); });
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

void Plugin::fail_launch(cudaError_t status, std::string const& problem) {
  const std::string complaint = check_environment();
  if (!complaint.empty()) throw std::runtime_error(complaint);
  throw std::runtime_error(std::string("the kernel could not be launched: ") +
                           cudaGetErrorString(status) + " (" + problem + ")");
}

}  // namespace msda::trt
