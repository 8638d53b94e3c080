// The TensorRT plugin of layer normalisation with a result in 8 bits. It takes the place of a
// LayerNormalization and of the QuantizeLinear behind it.
#include <stdexcept>
#include <string>

#include "creator.h"
#include "msda/launchers.h"

namespace msda::trt {
namespace {

constexpr char kQuantizedLayerNorm[] = "QuantizedLayerNorm";
constexpr char kScale[] = "scale";

class QuantizedLayerNormPlugin final : public KernelPlugin<QuantizedLayerNormProblem> {
 public:
  // Throws std::invalid_argument for numbers that the kernels do not take.
  QuantizedLayerNormPlugin(float eps, int32_t output_type, float scale)
      : KernelPlugin(kQuantizedLayerNorm,
                     "eps=" + number_text(eps) + " output_type=" + std::to_string(output_type) +
                         " scale=" + number_text(scale),
                     {{"x", "[..., C]"}, {"weight", "[C]"}, {"bias", "[C]"}}),
        eps_(eps),
        output_type_(output_type),
        scale_(scale) {
    if (output_type != kOnnxInt8 && output_type != kOnnxFloat8) {
      throw std::invalid_argument("output_type: expected 3 (int8) or 17 (float8), got " +
                                  std::to_string(output_type));
    }
    check_message(check(options()));
  }

 private:
  Plugin* copy() const override { return new QuantizedLayerNormPlugin(*this); }

  DataType output_type(int32_t /*index*/, DataType const* /*types*/) const override {
    return output_type_ == kOnnxInt8 ? DataType::kINT8 : DataType::kFP8;
  }

  void check_sizes(Dims const* dims, int32_t count) const override {
    if (dims[0].nbDims < 1) fail(0, "", dims[0]);
    const int64_t channels = last_size(dims[0]);
    for (int32_t i = 1; i < count; ++i) {
      if (dims[i].nbDims != 1) fail(i, "", dims[i]);
      if (differ(channels, dims[i].d[0])) {
        fail(i, " with C=" + std::to_string(channels) + " (from x)", dims[i]);
      }
    }
  }

  // The problem without sizes and type.
  QuantizedLayerNormProblem options() const {
    QuantizedLayerNormProblem problem;
    problem.eps = eps_;
    problem.output_type = output_type_ == kOnnxInt8 ? EightBits::kInt8 : EightBits::kFloat8;
    problem.scale = scale_;
    return problem;
  }

  QuantizedLayerNormProblem make_problem(PluginTensorDesc const* inputs) const override {
    QuantizedLayerNormProblem problem = options();
    problem.rows = count_rows(inputs[0].dims);
    problem.channels = last_size(inputs[0].dims);
    problem.type = convert(inputs[0].type);
    return problem;
  }

  cudaError_t launch(QuantizedLayerNormProblem const& problem, void const* const* inputs,
                     void* const* outputs, void* /*work*/, cudaStream_t stream) const override {
    return quantized_layer_norm(problem, {inputs[0], inputs[1], inputs[2], outputs[0]}, stream);
  }

  std::string describe(QuantizedLayerNormProblem const& problem) const override {
    return "M=" + std::to_string(problem.rows) + " C=" + std::to_string(problem.channels) + " " +
           msda::name(problem.type) + " to " + msda::name(problem.output_type);
  }

  std::vector<PluginField> fields() const override {
    return {{kEps, &eps_, kFloat32, 1},
            {kOutputType, &output_type_, kInt32, 1},
            {kScale, &scale_, kFloat32, 1}};
  }

  float eps_;
  int32_t output_type_;
  float scale_;
};

}  // namespace

Creator& quantized_layer_norm_creator() {
  static Creator creator(
      kQuantizedLayerNorm,
      {real_field(kEps), number_field(kOutputType, "3 or 17"), real_field(kScale)},
      "eps, output_type and scale", [](FieldValues const& fields) -> Plugin* {
        return new QuantizedLayerNormPlugin(fields.real(kEps), fields.number(kOutputType),
                                            fields.real(kScale));
      });
  return creator;
}

}  // namespace msda::trt
