// The TensorRT plugin of linear layers. It describes its tensors as the kernels' LinearProblem and
// calls the launcher.
#pragma once

#include <cstdint>
#include <vector>

#include "msda/linear_params.h"
#include "plugin.h"

namespace msda::trt {

inline constexpr char kLinear[] = "Linear";
inline constexpr char kActivation[] = "activation";
inline constexpr char kAddResidual[] = "add_residual";
inline constexpr char kMultiplyMask[] = "multiply_mask";
inline constexpr char kNormalise[] = "normalise";

class LinearPlugin final : public Plugin {
 public:
  // The plugin ignores the inputs of a residual, mask or normalisation that a layer does not have.
  LinearPlugin(Activation activation, bool add_residual, bool multiply_mask, bool normalise,
               float eps);

 private:
  Plugin* copy() const override { return new LinearPlugin(*this); }
  bool accepts_count(int32_t num_inputs) const override;
  void check_types(nvinfer1::DataType const* types, int32_t count) const override;
  void check_sizes(nvinfer1::Dims const* dims, int32_t count) const override;
  void check_problem(nvinfer1::PluginTensorDesc const* inputs, int32_t count) const override;
  void set_output_shape(nvinfer1::DimsExprs const* inputs, nvinfer1::DimsExprs& output,
                        nvinfer1::IExprBuilder& expressions) const override;
  void launch(nvinfer1::PluginTensorDesc const* descriptions, int32_t count,
              void const* const* inputs, void* output, void* work,
              cudaStream_t stream) const override;
  std::vector<nvinfer1::PluginField> fields() const override;

  // The problem without sizes and type.
  LinearProblem options() const;

  // Checks types and sizes, all known, and returns the problem for the kernels.
  LinearProblem read_problem(nvinfer1::PluginTensorDesc const* inputs, int32_t count) const;

  int32_t activation_;     // a number of msda::Activation
  int32_t add_residual_;   // 0 or 1
  int32_t multiply_mask_;  // 0 or 1
  int32_t normalise_;      // 0 or 1
  float eps_;
};

}  // namespace msda::trt
