// The TensorRT plugin of both MSDA operators. It describes its tensors as the kernels' Problem and
// calls the launcher.
#pragma once

#include <cstdint>
#include <vector>

#include "plugin.h"
#include "shapes.h"

namespace msda::trt {

inline constexpr char kPointsPerLevel[] = "points_per_level";
inline constexpr char kPacked[] = "packed";

class MsdaPlugin final : public Plugin {
 public:
  // An empty points_per_level means that every level has the same number of points.
  MsdaPlugin(Operator op, std::vector<int32_t> points_per_level);

 private:
  Plugin* copy() const override { return new MsdaPlugin(*this); }
  bool accepts_count(int32_t num_inputs) const override;
  bool accepts_type(int32_t index, nvinfer1::DataType const* types) const override;
  void check_types(nvinfer1::DataType const* types, int32_t count) const override;
  void check_sizes(nvinfer1::Dims const* dims, int32_t count) const override;
  void check_problem(nvinfer1::PluginTensorDesc const* inputs, int32_t count) const override;
  void set_output_shape(nvinfer1::DimsExprs const* inputs, nvinfer1::DimsExprs& output,
                        nvinfer1::IExprBuilder& expressions) const override;
  void launch(nvinfer1::PluginTensorDesc const* descriptions, int32_t count,
              void const* const* inputs, void* output, void* work,
              cudaStream_t stream) const override;
  std::vector<nvinfer1::PluginField> fields() const override;

  Operator op_;
  std::vector<int32_t> points_per_level_;
};

}  // namespace msda::trt
