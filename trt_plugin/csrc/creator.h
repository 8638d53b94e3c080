// Creates plugins from their fields, for a network (build) and from an engine (runtime).
#pragma once

#include <NvInferRuntime.h>

#include <vector>

#include "shapes.h"

namespace msda::trt {

class Creator : public nvinfer1::IPluginCreatorV3One {
 public:
  nvinfer1::IPluginV3* createPlugin(char const* layer_name,
                                    nvinfer1::PluginFieldCollection const* fields,
                                    nvinfer1::TensorRTPhase phase) noexcept final;
  nvinfer1::PluginFieldCollection const* getFieldNames() noexcept final { return &collection_; }
  char const* getPluginName() const noexcept final { return name_; }
  char const* getPluginVersion() const noexcept final;
  char const* getPluginNamespace() const noexcept final;

 protected:
  // `name` is a literal; `fields` describe those that a plugin may have.
  Creator(char const* name, std::vector<nvinfer1::PluginField> fields);
  Creator(Creator const&) = delete;

  // Throws std::invalid_argument, with a message that names the field.
  virtual nvinfer1::IPluginV3* make(std::vector<nvinfer1::PluginField> const& fields) const = 0;

 private:
  char const* name_;
  std::vector<nvinfer1::PluginField> fields_;
  nvinfer1::PluginFieldCollection collection_;
};

class MsdaCreator final : public Creator {
 public:
  explicit MsdaCreator(Operator op);

 private:
  nvinfer1::IPluginV3* make(std::vector<nvinfer1::PluginField> const& fields) const override;

  Operator op_;
};

class WindowCreator final : public Creator {
 public:
  WindowCreator();

 private:
  nvinfer1::IPluginV3* make(std::vector<nvinfer1::PluginField> const& fields) const override;
};

class GroupNormCreator final : public Creator {
 public:
  GroupNormCreator();

 private:
  nvinfer1::IPluginV3* make(std::vector<nvinfer1::PluginField> const& fields) const override;
};

class LinearCreator final : public Creator {
 public:
  LinearCreator();

 private:
  nvinfer1::IPluginV3* make(std::vector<nvinfer1::PluginField> const& fields) const override;
};

class LinearMaxCreator final : public Creator {
 public:
  LinearMaxCreator();

 private:
  nvinfer1::IPluginV3* make(std::vector<nvinfer1::PluginField> const& fields) const override;
};

class TopKCreator final : public Creator {
 public:
  TopKCreator();

 private:
  nvinfer1::IPluginV3* make(std::vector<nvinfer1::PluginField> const& fields) const override;
};

class QuantizedLinearCreator final : public Creator {
 public:
  QuantizedLinearCreator();

 private:
  nvinfer1::IPluginV3* make(std::vector<nvinfer1::PluginField> const& fields) const override;
};

class QuantizedLayerNormCreator final : public Creator {
 public:
  QuantizedLayerNormCreator();

 private:
  nvinfer1::IPluginV3* make(std::vector<nvinfer1::PluginField> const& fields) const override;
};

}  // namespace msda::trt
