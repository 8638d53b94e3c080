// Creates plugins from their fields, for a network (build) and from an engine (runtime).
#pragma once

#include <NvInferRuntime.h>

#include "shapes.h"

namespace msda::trt {

class Creator final : public nvinfer1::IPluginCreatorV3One {
 public:
  explicit Creator(Operator op);

  nvinfer1::IPluginV3* createPlugin(char const* layer_name,
                                    nvinfer1::PluginFieldCollection const* fields,
                                    nvinfer1::TensorRTPhase phase) noexcept override;
  nvinfer1::PluginFieldCollection const* getFieldNames() noexcept override { return &fields_; }
  char const* getPluginName() const noexcept override;
  char const* getPluginVersion() const noexcept override;
  char const* getPluginNamespace() const noexcept override;

 private:
  Operator op_;
  nvinfer1::PluginField fields_of_plugin_[2];
  nvinfer1::PluginFieldCollection fields_;
};

}  // namespace msda::trt
