// The TensorRT plugin of both operators. It describes its tensors as the kernels' Problem, calls
// the launcher, and reports errors as TensorRT expects them. It has no arithmetic, no workspace and
// no state between calls.
#pragma once

#include <NvInferRuntime.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "shapes.h"

namespace msda::trt {

inline constexpr char kNamespace[] = "msda";
inline constexpr char kVersion[] = "1";
inline constexpr char kPointsPerLevel[] = "points_per_level";
inline constexpr char kPacked[] = "packed";

class Plugin final : public nvinfer1::IPluginV3,
                     public nvinfer1::IPluginV3OneCore,
                     public nvinfer1::IPluginV3OneBuild,
                     public nvinfer1::IPluginV3OneRuntime {
 public:
  // An empty points_per_level means that every level has the same number of points.
  Plugin(Operator op, std::vector<int32_t> points_per_level);
  Plugin(Plugin const&) = default;

  // IPluginV3
  nvinfer1::IPluginCapability* getCapabilityInterface(
      nvinfer1::PluginCapabilityType type) noexcept override;
  nvinfer1::IPluginV3* clone() noexcept override;

  // IPluginV3OneCore
  char const* getPluginName() const noexcept override;
  char const* getPluginVersion() const noexcept override;
  char const* getPluginNamespace() const noexcept override;

  // IPluginV3OneBuild
  int32_t getNbOutputs() const noexcept override { return 1; }
  int32_t getOutputDataTypes(nvinfer1::DataType* output_types, int32_t num_outputs,
                             nvinfer1::DataType const* input_types,
                             int32_t num_inputs) const noexcept override;
  int32_t getOutputShapes(nvinfer1::DimsExprs const* inputs, int32_t num_inputs,
                          nvinfer1::DimsExprs const* shape_inputs, int32_t num_shape_inputs,
                          nvinfer1::DimsExprs* outputs, int32_t num_outputs,
                          nvinfer1::IExprBuilder& expressions) noexcept override;
  bool supportsFormatCombination(int32_t position, nvinfer1::DynamicPluginTensorDesc const* in_out,
                                 int32_t num_inputs, int32_t num_outputs) noexcept override;
  int32_t configurePlugin(nvinfer1::DynamicPluginTensorDesc const* inputs, int32_t num_inputs,
                          nvinfer1::DynamicPluginTensorDesc const* outputs,
                          int32_t num_outputs) noexcept override;
  char const* getTimingCacheID() noexcept override { return timing_cache_id_.c_str(); }
  char const* getMetadataString() noexcept override { return description_.c_str(); }

  // IPluginV3OneRuntime
  int32_t onShapeChange(nvinfer1::PluginTensorDesc const* inputs, int32_t num_inputs,
                        nvinfer1::PluginTensorDesc const* outputs,
                        int32_t num_outputs) noexcept override;
  int32_t enqueue(nvinfer1::PluginTensorDesc const* input_descriptions,
                  nvinfer1::PluginTensorDesc const* output_descriptions, void const* const* inputs,
                  void* const* outputs, void* workspace, cudaStream_t stream) noexcept override;
  nvinfer1::IPluginV3* attachToContext(nvinfer1::IPluginResourceContext* context) noexcept override;
  nvinfer1::PluginFieldCollection const* getFieldsToSerialize() noexcept override;

 private:
  const char* name() const noexcept { return operator_name(op_); }

  Operator op_;
  std::vector<int32_t> points_per_level_;
  std::string description_;
  std::string timing_cache_id_;
  // Type of the value in the network's definition, see supportsFormatCombination.
  mutable std::optional<nvinfer1::DataType> declared_value_type_;
  // Storage of the result of getFieldsToSerialize.
  nvinfer1::PluginField field_[2]{};
  nvinfer1::PluginFieldCollection fields_{};
};

}  // namespace msda::trt
