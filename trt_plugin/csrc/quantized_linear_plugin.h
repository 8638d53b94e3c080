// The TensorRT plugin of linear layers with 8-bit inputs. It describes its tensors as the kernels'
// QuantizedLinearProblem and calls the launcher.
//
// x is the result of a QuantizeLinear, without a DequantizeLinear between: the plugin takes the
// place of the DequantizeLinear, and of the QuantizeLinear behind it where its result has 8 bits.
// TensorRT lets weights in 8 bits reach no layer but DequantizeLinear. The weights are therefore
// int32: a number holds four of a row, the first in its lowest byte.
#pragma once

#include <cstdint>
#include <vector>

#include "linear_plugin.h"
#include "msda/quantized_linear_params.h"

namespace msda::trt {

inline constexpr char kQuantizedLinear[] = "QuantizedLinear";
inline constexpr char kOutputType[] = "output_type";
inline constexpr char kOutputScale[] = "output_scale";

// Types of the output by their numbers in ONNX, the values of the field output_type.
inline constexpr int32_t kOnnxInt8 = 3, kOnnxFloat16 = 10, kOnnxBFloat16 = 16, kOnnxFloat8 = 17;

class QuantizedLinearPlugin final : public Plugin {
 public:
  // The plugin ignores the input of a residual or mask that a layer does not have, and the scale of
  // a 16-bit output.
  QuantizedLinearPlugin(Activation activation, bool add_residual, bool multiply_mask,
                        int32_t output_type, float output_scale);

 private:
  Plugin* copy() const override { return new QuantizedLinearPlugin(*this); }
  bool accepts_count(int32_t num_inputs) const override;
  bool accepts_type(int32_t index, nvinfer1::DataType const* types) const override;
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

  // Checks types and sizes, all known, and returns the problem for the kernels.
  QuantizedLinearProblem read_problem(nvinfer1::PluginTensorDesc const* inputs,
                                      int32_t count) const;

  bool quantized() const { return output_type_ == kOnnxInt8 || output_type_ == kOnnxFloat8; }

  int32_t activation_;     // a number of msda::Activation
  int32_t add_residual_;   // 0 or 1
  int32_t multiply_mask_;  // 0 or 1
  int32_t output_type_;
  float output_scale_;
};

}  // namespace msda::trt
