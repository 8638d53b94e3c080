// The TensorRT plugin of layer normalisation with a result in 8 bits. It describes its tensors as
// the kernels' QuantizedLayerNormProblem and calls the launcher.
//
// The plugin takes the place of a LayerNormalization and of the QuantizeLinear behind it.
#pragma once

#include <cstdint>
#include <vector>

#include "group_norm_plugin.h"
#include "msda/quantized_layer_norm_params.h"
#include "quantized_linear_plugin.h"

namespace msda::trt {

inline constexpr char kQuantizedLayerNorm[] = "QuantizedLayerNorm";
inline constexpr char kScale[] = "scale";

class QuantizedLayerNormPlugin final : public Plugin {
 public:
  // Throws std::invalid_argument for numbers that the kernels do not take.
  QuantizedLayerNormPlugin(float eps, int32_t output_type, float scale);

 private:
  Plugin* copy() const override { return new QuantizedLayerNormPlugin(*this); }
  bool accepts_count(int32_t num_inputs) const override;
  nvinfer1::DataType output_type(nvinfer1::DataType first) const override;
  void check_types(nvinfer1::DataType const* types, int32_t count) const override;
  void check_sizes(nvinfer1::Dims const* dims, int32_t count) const override;
  void check_problem(nvinfer1::PluginTensorDesc const* inputs, int32_t count) const override;
  void set_output_shape(nvinfer1::DimsExprs const* inputs, nvinfer1::DimsExprs& output,
                        nvinfer1::IExprBuilder& expressions) const override;
  void launch(nvinfer1::PluginTensorDesc const* descriptions, int32_t count,
              void const* const* inputs, void* output, void* work,
              cudaStream_t stream) const override;
  std::vector<nvinfer1::PluginField> fields() const override;

  // Returns the problem of the fields, without sizes.
  QuantizedLayerNormProblem empty_problem() const;

  // Checks types and sizes, all known, and returns the problem for the kernels.
  QuantizedLayerNormProblem read_problem(nvinfer1::PluginTensorDesc const* inputs,
                                         int32_t count) const;

  float eps_;
  int32_t output_type_;
  float scale_;
};

}  // namespace msda::trt
