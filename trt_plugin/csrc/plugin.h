// What the plugins of all operators share: TensorRT's interfaces, the checks of types and sizes,
// and the report of errors. A plugin has one output, and no arithmetic.
#pragma once

#include <NvInferRuntime.h>
#include <cuda_runtime_api.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "tensors.h"

namespace msda::trt {

inline constexpr char kNamespace[] = "msda";
inline constexpr char kVersion[] = "1";

class Plugin : public nvinfer1::IPluginV3,
               public nvinfer1::IPluginV3OneCore,
               public nvinfer1::IPluginV3OneBuild,
               public nvinfer1::IPluginV3OneRuntime {
 public:
  // IPluginV3
  nvinfer1::IPluginCapability* getCapabilityInterface(
      nvinfer1::PluginCapabilityType type) noexcept final;
  nvinfer1::IPluginV3* clone() noexcept final;

  // IPluginV3OneCore
  char const* getPluginName() const noexcept final { return name_; }
  char const* getPluginVersion() const noexcept final { return kVersion; }
  char const* getPluginNamespace() const noexcept final { return kNamespace; }

  // IPluginV3OneBuild
  int32_t getNbOutputs() const noexcept final { return 1; }
  int32_t getOutputDataTypes(nvinfer1::DataType* output_types, int32_t num_outputs,
                             nvinfer1::DataType const* input_types,
                             int32_t num_inputs) const noexcept final;
  int32_t getOutputShapes(nvinfer1::DimsExprs const* inputs, int32_t num_inputs,
                          nvinfer1::DimsExprs const* shape_inputs, int32_t num_shape_inputs,
                          nvinfer1::DimsExprs* outputs, int32_t num_outputs,
                          nvinfer1::IExprBuilder& expressions) noexcept final;
  bool supportsFormatCombination(int32_t position, nvinfer1::DynamicPluginTensorDesc const* in_out,
                                 int32_t num_inputs, int32_t num_outputs) noexcept final;
  int32_t configurePlugin(nvinfer1::DynamicPluginTensorDesc const* inputs, int32_t num_inputs,
                          nvinfer1::DynamicPluginTensorDesc const* outputs,
                          int32_t num_outputs) noexcept final;
  size_t getWorkspaceSize(nvinfer1::DynamicPluginTensorDesc const* inputs, int32_t num_inputs,
                          nvinfer1::DynamicPluginTensorDesc const* outputs,
                          int32_t num_outputs) const noexcept final;
  char const* getTimingCacheID() noexcept final { return timing_cache_id_.c_str(); }
  char const* getMetadataString() noexcept final { return description_.c_str(); }

  // IPluginV3OneRuntime
  int32_t onShapeChange(nvinfer1::PluginTensorDesc const* inputs, int32_t num_inputs,
                        nvinfer1::PluginTensorDesc const* outputs,
                        int32_t num_outputs) noexcept final;
  int32_t enqueue(nvinfer1::PluginTensorDesc const* input_descriptions,
                  nvinfer1::PluginTensorDesc const* output_descriptions, void const* const* inputs,
                  void* const* outputs, void* workspace, cudaStream_t stream) noexcept final;
  nvinfer1::IPluginV3* attachToContext(nvinfer1::IPluginResourceContext* context) noexcept final;
  nvinfer1::PluginFieldCollection const* getFieldsToSerialize() noexcept final;

 protected:
  static constexpr int32_t kMaxInputs = 7;  // of any plugin

  // `name` is a literal; `description` tells the fields.
  Plugin(char const* name, std::string description);
  Plugin(Plugin const&) = default;

  virtual Plugin* copy() const = 0;

  virtual bool accepts_count(int32_t num_inputs) const = 0;

  // Returns whether input `index` may have the type types[index]. Reads types[0] to types[index].
  // Here all inputs have one floating type.
  virtual bool accepts_type(int32_t index, nvinfer1::DataType const* types) const;

  // Returns the type of the output, for inputs that have passed check_types. Here it is that of the
  // first input.
  virtual nvinfer1::DataType output_type(nvinfer1::DataType first) const { return first; }

  // The checks throw std::invalid_argument with a message that names the argument. A negative size
  // is unknown and agrees with every other.
  virtual void check_types(nvinfer1::DataType const* types, int32_t count) const = 0;
  virtual void check_sizes(nvinfer1::Dims const* dims, int32_t count) const = 0;

  // Calls check_types and check_sizes.
  void check_inputs(nvinfer1::PluginTensorDesc const* inputs, int32_t count) const;

  // Checks types and sizes, all known, and the kernels' limits.
  virtual void check_problem(nvinfer1::PluginTensorDesc const* inputs, int32_t count) const = 0;

  // Fills the shape of the output. The inputs have passed check_sizes.
  virtual void set_output_shape(nvinfer1::DimsExprs const* inputs, nvinfer1::DimsExprs& output,
                                nvinfer1::IExprBuilder& expressions) const = 0;

  // Returns the bytes of work memory that suffice for inputs up to these sizes. May throw.
  virtual size_t work_bytes(nvinfer1::PluginTensorDesc const* /*largest*/,
                            int32_t /*count*/) const {
    return 0;
  }

  // Calls the launcher, and check_launch with its result. `count` is the number of inputs.
  virtual void launch(nvinfer1::PluginTensorDesc const* descriptions, int32_t count,
                      void const* const* inputs, void* output, void* work,
                      cudaStream_t stream) const = 0;

  // Returns the fields, whose data lives as long as the plugin.
  virtual std::vector<nvinfer1::PluginField> fields() const = 0;

  // Throws std::runtime_error unless a launch has succeeded.
  static void check_launch(cudaError_t status, std::string const& problem);

  // Set when a network or a new shape tells it, as enqueue() does not. 0 before.
  int32_t num_inputs_ = 0;

 private:
  char const* name_;
  std::string description_;
  std::string timing_cache_id_;
  // Type of the first input in the network's definition, see supportsFormatCombination.
  mutable std::optional<nvinfer1::DataType> declared_type_;
  // Storage of the result of getFieldsToSerialize.
  std::vector<nvinfer1::PluginField> serialized_;
  nvinfer1::PluginFieldCollection collection_{};
};

}  // namespace msda::trt
