// The TensorRT plugin of the largest outputs of linear layers. It describes its tensors as the
// kernels' LinearMaxProblem and calls the launcher.
#pragma once

#include <cstdint>
#include <vector>

#include "msda/linear_max_params.h"
#include "plugin.h"

namespace msda::trt {

inline constexpr char kLinearMax[] = "LinearMax";

class LinearMaxPlugin final : public Plugin {
 public:
  LinearMaxPlugin() : Plugin(kLinearMax, "") {}

 private:
  Plugin* copy() const override { return new LinearMaxPlugin(*this); }
  bool accepts_count(int32_t num_inputs) const override;
  bool accepts_type(int32_t index, nvinfer1::DataType const* types) const override;
  nvinfer1::DataType output_type(nvinfer1::DataType /*first*/) const override {
    return nvinfer1::DataType::kFLOAT;
  }
  void check_types(nvinfer1::DataType const* types, int32_t count) const override;
  void check_sizes(nvinfer1::Dims const* dims, int32_t count) const override;
  void check_problem(nvinfer1::PluginTensorDesc const* inputs, int32_t count) const override;
  void set_output_shape(nvinfer1::DimsExprs const* inputs, nvinfer1::DimsExprs& output,
                        nvinfer1::IExprBuilder& expressions) const override;
  void launch(nvinfer1::PluginTensorDesc const* descriptions, int32_t count,
              void const* const* inputs, void* output, void* work,
              cudaStream_t stream) const override;
  std::vector<nvinfer1::PluginField> fields() const override { return {}; }

  // Checks types and sizes, all known, and returns the problem for the kernels.
  LinearMaxProblem read_problem(nvinfer1::PluginTensorDesc const* inputs, int32_t count) const;
};

}  // namespace msda::trt
