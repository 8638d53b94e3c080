// The TensorRT plugin that searches for the largest numbers of rows. It describes its tensors as
// the kernels' TopKProblem and calls the launcher.
#pragma once

#include <cstdint>
#include <vector>

#include "msda/top_k_params.h"
#include "plugin.h"

namespace msda::trt {

inline constexpr char kTopKIndices[] = "TopKIndices";
inline constexpr char kTopKCount[] = "count";

class TopKPlugin final : public Plugin {
 public:
  explicit TopKPlugin(int32_t count);

 private:
  Plugin* copy() const override { return new TopKPlugin(*this); }
  bool accepts_count(int32_t num_inputs) const override { return num_inputs == 1; }
  bool accepts_type(int32_t index, nvinfer1::DataType const* types) const override;
  nvinfer1::DataType output_type(nvinfer1::DataType /*first*/) const override {
    return nvinfer1::DataType::kINT32;
  }
  void check_types(nvinfer1::DataType const* types, int32_t count) const override;
  void check_sizes(nvinfer1::Dims const* dims, int32_t count) const override;
  void check_problem(nvinfer1::PluginTensorDesc const* inputs, int32_t count) const override;
  void set_output_shape(nvinfer1::DimsExprs const* inputs, nvinfer1::DimsExprs& output,
                        nvinfer1::IExprBuilder& expressions) const override;
  size_t work_bytes(nvinfer1::PluginTensorDesc const* largest, int32_t count) const override;
  void launch(nvinfer1::PluginTensorDesc const* descriptions, int32_t count,
              void const* const* inputs, void* output, void* work,
              cudaStream_t stream) const override;
  std::vector<nvinfer1::PluginField> fields() const override;

  // Checks type and sizes, all known, and returns the problem for the kernels.
  TopKProblem read_problem(nvinfer1::PluginTensorDesc const* inputs, int32_t num_inputs) const;

  int32_t count_;
};

}  // namespace msda::trt
