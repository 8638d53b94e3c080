#include "plugin.h"

#include <cuda_runtime_api.h>

#include <new>
#include <stdexcept>
#include <utility>

#include "msda/launchers.h"
#include "report.h"

namespace msda::trt {
namespace {

std::string describe(Operator op, std::vector<int32_t> const& points_per_level) {
  std::string text = op == Operator::kPackedAttention ? "packed, " : "";
  if (points_per_level.empty()) return text + "equal points per level";
  text += "points_per_level=[";
  for (size_t i = 0; i < points_per_level.size(); ++i) {
    text += (i ? "," : "") + std::to_string(points_per_level[i]);
  }
  return text + "]";
}

std::string describe(Problem const& problem) {
  return "N=" + std::to_string(problem.batch_size) + " S=" + std::to_string(problem.num_cells) +
         " M=" + std::to_string(problem.num_heads) + " D=" + std::to_string(problem.head_dim) +
         " L=" + std::to_string(problem.num_levels) + " Q=" + std::to_string(problem.num_queries) +
         " K=" + std::to_string(problem.total_points) + " " + msda::name(problem.value_type);
}

// Returns the constant sizes. The others are -1, unknown.
nvinfer1::Dims constant_part(nvinfer1::DimsExprs const& expressions) {
  nvinfer1::Dims dims{};
  dims.nbDims = expressions.nbDims;
  for (int32_t i = 0; i < expressions.nbDims; ++i) {
    nvinfer1::IDimensionExpr const* size = expressions.d[i];
    dims.d[i] = size != nullptr && size->isConstant() ? size->getConstantValue() : -1;
  }
  return dims;
}

}  // namespace

Plugin::Plugin(Operator op, std::vector<int32_t> points_per_level)
    : op_(op),
      points_per_level_(std::move(points_per_level)),
      description_(describe(op, points_per_level_)),
      timing_cache_id_(std::string(operator_name(op)) + " " + kVersion + " " + description_) {}

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
  nvinfer1::IPluginV3* copy = nullptr;
  guarded(name(), [&] { copy = new Plugin(*this); });
  return copy;
}

char const* Plugin::getPluginName() const noexcept { return name(); }

char const* Plugin::getPluginVersion() const noexcept { return kVersion; }

char const* Plugin::getPluginNamespace() const noexcept { return kNamespace; }

int32_t Plugin::getOutputDataTypes(nvinfer1::DataType* output_types, int32_t num_outputs,
                                   nvinfer1::DataType const* input_types,
                                   int32_t num_inputs) const noexcept {
  return guarded(name(), [&] {
    check_types(op_, input_types, num_inputs);
    if (num_outputs != 1) throw std::invalid_argument("expected one output");
    if (!declared_value_type_) declared_value_type_ = input_types[0];
    output_types[0] = input_types[0];
  });
}

int32_t Plugin::getOutputShapes(nvinfer1::DimsExprs const* inputs, int32_t num_inputs,
                                nvinfer1::DimsExprs const* /*shape_inputs*/,
                                int32_t /*num_shape_inputs*/, nvinfer1::DimsExprs* outputs,
                                int32_t num_outputs, nvinfer1::IExprBuilder& expressions) noexcept {
  return guarded(name(), [&] {
    std::vector<nvinfer1::Dims> dims;
    for (int32_t i = 0; i < num_inputs; ++i) dims.push_back(constant_part(inputs[i]));
    check_sizes(op_, points_per_level_, dims.data(), num_inputs);
    if (num_outputs != 1) throw std::invalid_argument("expected one output");
    nvinfer1::DimsExprs const& value = inputs[0];
    outputs[0].nbDims = 3;  // [N, Q, M * D]
    outputs[0].d[0] = value.d[0];
    outputs[0].d[1] = inputs[locations_index(op_)].d[1];
    outputs[0].d[2] =
        expressions.operation(nvinfer1::DimensionOperation::kPROD, *value.d[2], *value.d[3]);
  });
}

bool Plugin::supportsFormatCombination(int32_t position,
                                       nvinfer1::DynamicPluginTensorDesc const* in_out,
                                       int32_t num_inputs, int32_t num_outputs) noexcept {
  if (num_inputs != msda::trt::num_inputs(op_) || num_outputs != 1) return false;
  if (position < 0 || position > num_inputs) return false;
  if (in_out[position].desc.format != nvinfer1::TensorFormat::kLINEAR) return false;
  nvinfer1::DataType types[8];
  for (int32_t i = 0; i <= position; ++i) types[i] = in_out[i].desc.type;
  if (position == num_inputs) return types[position] == types[0];
  if (!accepts_type(op_, position, types)) return false;
  if (position == 0 && declared_value_type_ &&
      *declared_value_type_ != nvinfer1::DataType::kFLOAT) {
    // A weakly typed build times the plugin alone with each supported type, without the conversions
    // around it. It has therefore chosen the fp32 kernel for a 16-bit network.
    return types[0] == *declared_value_type_;
  }
  return true;
}

int32_t Plugin::configurePlugin(nvinfer1::DynamicPluginTensorDesc const* inputs, int32_t num_inputs,
                                nvinfer1::DynamicPluginTensorDesc const* /*outputs*/,
                                int32_t /*num_outputs*/) noexcept {
  return guarded(name(), [&] {
    std::vector<nvinfer1::DataType> types;
    std::vector<nvinfer1::Dims> declared, smallest, typical, largest;
    for (int32_t i = 0; i < num_inputs; ++i) {
      nvinfer1::Dims const& dims = inputs[i].desc.dims;
      // TensorRT gives a bound without sizes where it knows none.
      const auto known = [&](nvinfer1::Dims const& bound) {
        return bound.nbDims > 0 ? bound : dims;
      };
      types.push_back(inputs[i].desc.type);
      declared.push_back(dims);
      smallest.push_back(known(inputs[i].min));
      typical.push_back(known(inputs[i].opt));
      largest.push_back(known(inputs[i].max));
    }
    check_types(op_, types.data(), num_inputs);
    for (auto const* dims : {&declared, &smallest, &typical, &largest}) {
      check_sizes(op_, points_per_level_, dims->data(), num_inputs);
    }
  });
}

int32_t Plugin::onShapeChange(nvinfer1::PluginTensorDesc const* inputs, int32_t num_inputs,
                              nvinfer1::PluginTensorDesc const* /*outputs*/,
                              int32_t /*num_outputs*/) noexcept {
  return guarded(name(), [&] { read_problem(op_, points_per_level_, inputs, num_inputs); });
}

int32_t Plugin::enqueue(nvinfer1::PluginTensorDesc const* input_descriptions,
                        nvinfer1::PluginTensorDesc const* /*output_descriptions*/,
                        void const* const* inputs, void* const* outputs, void* /*workspace*/,
                        cudaStream_t stream) noexcept {
  return guarded(name(), [&] {
    const Problem problem =
        read_problem(op_, points_per_level_, input_descriptions, num_inputs(op_));
    ForwardArguments arguments;
    arguments.value = inputs[0];
    arguments.spatial_shapes = inputs[1];
    arguments.level_start_index = inputs[2];
    if (op_ != Operator::kAttention) arguments.reference_points = inputs[3];
    arguments.sampling_locations = inputs[locations_index(op_)];
    arguments.attention_weights =
        op_ == Operator::kPackedAttention
            ? static_cast<char const*>(arguments.sampling_locations) +
                  2 * problem.points_of_query() * size_of(problem.location_type)
            : inputs[locations_index(op_) + 1];
    arguments.output = outputs[0];
    const cudaError_t status = forward(problem, arguments, stream);
    if (status != cudaSuccess) {
      const std::string complaint = check_environment();
      if (!complaint.empty()) throw std::runtime_error(complaint);
      throw std::runtime_error(std::string("the kernel could not be launched: ") +
                               cudaGetErrorString(status) + " (" + describe(problem) + ")");
    }
  });
}

nvinfer1::IPluginV3* Plugin::attachToContext(
    nvinfer1::IPluginResourceContext* /*context*/) noexcept {
  return clone();
}

nvinfer1::PluginFieldCollection const* Plugin::getFieldsToSerialize() noexcept {
  int32_t count = 0;
  const auto add = [&](char const* name, int32_t const* data, size_t size) {
    field_[count++] = nvinfer1::PluginField{name, data, nvinfer1::PluginFieldType::kINT32,
                                            static_cast<int32_t>(size)};
  };
  if (!points_per_level_.empty()) {
    add(kPointsPerLevel, points_per_level_.data(), points_per_level_.size());
  }
  static constexpr int32_t kYes = 1;
  if (op_ == Operator::kPackedAttention) add(kPacked, &kYes, 1);
  fields_ = nvinfer1::PluginFieldCollection{count, field_};
  return &fields_;
}

}  // namespace msda::trt
