// The TensorRT plugin of the largest outputs of linear layers.
#include <string>

#include "creator.h"
#include "msda/launchers.h"

namespace msda::trt {
namespace {

constexpr char kLinearMax[] = "LinearMax";

class LinearMaxPlugin final : public KernelPlugin<LinearMaxProblem> {
 public:
  LinearMaxPlugin()
      : KernelPlugin(kLinearMax, "", {{"x", "[..., K]"}, {"weight", "[N, K]"}, {"bias", "[N]"}}) {}

 private:
  Plugin* copy() const override { return new LinearMaxPlugin(*this); }

  bool accepts_type(int32_t index, DataType const* types) const override {
    return index == 0 ? is_floating(types[0]) : types[index] == DataType::kFLOAT;
  }

  std::string expected_type(int32_t index, DataType const* /*types*/) const override {
    return index == 0 ? "float32, float16 or bfloat16" : "float32";
  }

  DataType output_type(int32_t /*index*/, DataType const* /*types*/) const override {
    return DataType::kFLOAT;
  }

  void check_sizes(Dims const* dims, int32_t /*count*/) const override {
    Dims const &x = dims[0], &weight = dims[1], &bias = dims[2];
    if (x.nbDims < 1) fail(0, "", x);
    if (weight.nbDims != 2) fail(1, "", weight);
    const int64_t inputs = last_size(x), outputs = weight.d[0];
    if (differ(inputs, weight.d[1])) {
      fail(1, " with K=" + std::to_string(inputs) + " (from x)", weight);
    }
    if (outputs == 0) fail(1, " with N of 1 or more", weight);
    if (bias.nbDims != 1) fail(2, "", bias);
    if (differ(outputs, bias.d[0])) {
      fail(2, " with N=" + std::to_string(outputs) + " (from weight)", bias);
    }
  }

  void set_output_shape(DimsExprs const* inputs, DimsExprs& output,
                        IExprBuilder& /*expressions*/) const override {
    output = inputs[0];
    --output.nbDims;
  }

  LinearMaxProblem make_problem(PluginTensorDesc const* inputs) const override {
    Dims const &x = inputs[0].dims, &weight = inputs[1].dims;
    return {count_rows(x), last_size(x), weight.d[0], convert(inputs[0].type)};
  }

  cudaError_t launch(LinearMaxProblem const& problem, void const* const* inputs,
                     void* const* outputs, void* /*work*/, cudaStream_t stream) const override {
    return linear_max(problem, {inputs[0], inputs[1], inputs[2], outputs[0]}, stream);
  }

  std::string describe(LinearMaxProblem const& problem) const override {
    return "M=" + std::to_string(problem.rows) + " K=" + std::to_string(problem.inputs) +
           " N=" + std::to_string(problem.outputs) + " " + msda::name(problem.type);
  }

  std::vector<PluginField> fields() const override { return {}; }
};

}  // namespace

Creator& linear_max_creator() {
  static Creator creator(kLinearMax, {}, "none", [](FieldValues const& /*fields*/) -> Plugin* {
    return new LinearMaxPlugin();
  });
  return creator;
}

}  // namespace msda::trt
