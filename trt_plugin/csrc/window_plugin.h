// The TensorRT plugin of window attention. It describes its tensors as the kernels' WindowProblem
// and calls the launcher.
#pragma once

#include <cstdint>
#include <vector>

#include "msda/window_params.h"
#include "plugin.h"

namespace msda::trt {

inline constexpr char kWindowAttention[] = "WindowAttention";
inline constexpr char kWindowSize[] = "window_size";
inline constexpr char kShift[] = "shift";
inline constexpr char kNumInputs[] = "num_inputs";  // of an engine's plugin

class WindowPlugin final : public Plugin {
 public:
  // Throws std::invalid_argument for numbers that the kernels do not take. `num_inputs` is 0 where
  // the network will tell it.
  WindowPlugin(int32_t window_size, int32_t shift, int32_t num_inputs);

 private:
  Plugin* copy() const override { return new WindowPlugin(*this); }
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

  // Checks types and sizes, all known, and returns the problem for the kernels.
  WindowProblem read_problem(nvinfer1::PluginTensorDesc const* inputs, int32_t count) const;

  int32_t window_size_;
  int32_t shift_;
};

}  // namespace msda::trt
