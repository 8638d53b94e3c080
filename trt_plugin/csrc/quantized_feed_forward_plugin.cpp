// The TensorRT plugin of feed-forward blocks in int8. It takes the place of a QuantizeLinear, of
// two QuantizedLinear and of a LayerNormalization; unless next_scale is 0, also of a QuantizeLinear
// behind it, whose result is the second output. The weights are int32, see
// quantized_linear_plugin.cpp.
#include <string>

#include "creator.h"
#include "msda/launchers.h"

namespace msda::trt {
namespace {

constexpr char kQuantizedFeedForward[] = "QuantizedFeedForward";
constexpr char kXScale[] = "x_scale";
constexpr char kHiddenScale[] = "hidden_scale";

class QuantizedFeedForwardPlugin final : public KernelPlugin<QuantizedFeedForwardProblem> {
 public:
  QuantizedFeedForwardPlugin(float x_scale, float hidden_scale, float eps, float next_scale)
      : KernelPlugin(kQuantizedFeedForward,
                     "x_scale=" + number_text(x_scale) +
                         " hidden_scale=" + number_text(hidden_scale) + " eps=" + number_text(eps) +
                         " next_scale=" + number_text(next_scale),
                     {{"x", "[..., C]"},
                      {"weight1", "[H, C/4]"},
                      {"scale1", "[H]"},
                      {"bias1", "[H]"},
                      {"weight2", "[C, H/4]"},
                      {"scale2", "[C]"},
                      {"bias2", "[C]"},
                      {"norm_weight", "[C]"},
                      {"norm_bias", "[C]"}}),
        x_scale_(x_scale),
        hidden_scale_(hidden_scale),
        eps_(eps),
        next_scale_(next_scale) {}

  int32_t getNbOutputs() const noexcept override { return next_scale_ == 0 ? 1 : 2; }

 private:
  Plugin* copy() const override { return new QuantizedFeedForwardPlugin(*this); }

  DataType output_type(int32_t index, DataType const* types) const override {
    return index == 1 ? DataType::kINT8 : types[0];
  }

  bool accepts_type(int32_t index, DataType const* types) const override {
    const DataType type = types[index];
    switch (index) {
      case 0:
        return type == DataType::kHALF || type == DataType::kBF16;
      case 1:
      case 4:
        return type == DataType::kINT32;
      case 7:
      case 8:
        return type == types[0];
      default:
        return type == DataType::kFLOAT;
    }
  }

  std::string expected_type(int32_t index, DataType const* types) const override {
    if (index == 0) return "float16 or bfloat16";
    if (index == 1 || index == 4) return "int32, four numbers of 8 bits each";
    return index >= 7 ? type_name(types[0]) + " (as x)" : "float32";
  }

  void check_sizes(Dims const* dims, int32_t count) const override {
    Dims const &x = dims[0], &weight1 = dims[1], &weight2 = dims[4];
    if (x.nbDims < 1) fail(0, "", x);
    if (weight1.nbDims != 2) fail(1, "", weight1);
    if (weight2.nbDims != 2) fail(4, "", weight2);
    const int64_t channels = last_size(x), hidden = weight1.d[0];
    const std::string of_x = " with C=" + std::to_string(channels) + " (from x)";
    const std::string of_weight1 = " with H=" + std::to_string(hidden) + " (from weight1)";
    const auto packs = [](int64_t words, int64_t size) {
      return words < 0 || size < 0 || words * 4 == size;
    };
    if (!packs(weight1.d[1], channels)) fail(1, of_x, weight1);
    if (differ(weight2.d[0], channels)) fail(4, of_x, weight2);
    if (!packs(weight2.d[1], hidden)) fail(4, of_weight1, weight2);
    for (int32_t i = 2; i < count; ++i) {
      if (i == 4) continue;
      const bool first = i < 4;
      if (dims[i].nbDims != 1 || differ(dims[i].d[0], first ? hidden : channels)) {
        fail(i, first ? of_weight1 : of_x, dims[i]);
      }
    }
  }

  QuantizedFeedForwardProblem make_problem(PluginTensorDesc const* inputs) const override {
    QuantizedFeedForwardProblem problem;
    problem.rows = count_rows(inputs[0].dims);
    problem.channels = last_size(inputs[0].dims);
    problem.hidden = inputs[1].dims.d[0];
    problem.eps = eps_;
    problem.type = convert(inputs[0].type);
    problem.x_scale = x_scale_;
    problem.hidden_scale = hidden_scale_;
    problem.next_scale = next_scale_;
    return problem;
  }

  cudaError_t launch(QuantizedFeedForwardProblem const& problem, void const* const* inputs,
                     void* const* outputs, void* /*work*/, cudaStream_t stream) const override {
    const QuantizedFeedForwardArguments arguments{inputs[0],
                                                  inputs[1],
                                                  inputs[2],
                                                  inputs[3],
                                                  inputs[4],
                                                  inputs[5],
                                                  inputs[6],
                                                  inputs[7],
                                                  inputs[8],
                                                  outputs[0],
                                                  problem.next_scale == 0 ? nullptr : outputs[1]};
    return quantized_feed_forward(problem, arguments, stream);
  }

  std::string describe(QuantizedFeedForwardProblem const& problem) const override {
    return "M=" + std::to_string(problem.rows) + " C=" + std::to_string(problem.channels) +
           " H=" + std::to_string(problem.hidden) + " " + msda::name(problem.type);
  }

  std::vector<PluginField> fields() const override {
    return {{kXScale, &x_scale_, kFloat32, 1},
            {kHiddenScale, &hidden_scale_, kFloat32, 1},
            {kEps, &eps_, kFloat32, 1},
            {kNextScale, &next_scale_, kFloat32, 1}};
  }

  float x_scale_;
  float hidden_scale_;
  float eps_;
  float next_scale_;
};

}  // namespace

Creator& quantized_feed_forward_creator() {
  static Creator creator(
      kQuantizedFeedForward,
      {real_field(kXScale), real_field(kHiddenScale), real_field(kEps), real_field(kNextScale)},
      "x_scale, hidden_scale, eps and next_scale", [](FieldValues const& fields) -> Plugin* {
        return new QuantizedFeedForwardPlugin(fields.real(kXScale), fields.real(kHiddenScale),
                                              fields.real(kEps), fields.real(kNextScale));
      });
  return creator;
}

}  // namespace msda::trt
