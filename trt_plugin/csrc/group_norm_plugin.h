// The TensorRT plugin of group normalisation. It describes its tensors as the kernels'
// GroupNormProblem and calls the launcher.
#pragma once

#include <cstdint>
#include <vector>

#include "msda/group_norm_params.h"
#include "plugin.h"

namespace msda::trt {

inline constexpr char kGroupNorm[] = "GroupNorm";
inline constexpr char kNumGroups[] = "num_groups";
inline constexpr char kEps[] = "eps";

class GroupNormPlugin final : public Plugin {
 public:
  // Throws std::invalid_argument for numbers that the kernels do not take.
  GroupNormPlugin(int32_t num_groups, float eps);

 private:
  Plugin* copy() const override { return new GroupNormPlugin(*this); }
  bool accepts_count(int32_t num_inputs) const override;
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

  // Checks types and sizes, all known, and returns the problem for the kernels.
  GroupNormProblem read_problem(nvinfer1::PluginTensorDesc const* inputs, int32_t count) const;

  int32_t num_groups_;
  float eps_;
};

}  // namespace msda::trt
