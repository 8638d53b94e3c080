// The TensorRT plugin of linear layers of a sum.
#include <string>

#include "creator.h"
#include "msda/launchers.h"

namespace msda::trt {
namespace {

constexpr char kLinearOfSum[] = "LinearOfSum";

class LinearOfSumPlugin final : public KernelPlugin<LinearOfSumProblem> {
 public:
  LinearOfSumPlugin()
      : KernelPlugin(
            kLinearOfSum, "",
            {{"x", "[..., K]"}, {"addend", "[..., K]"}, {"weight", "[N, K]"}, {"bias", "[N]"}}) {}

 private:
  Plugin* copy() const override { return new LinearOfSumPlugin(*this); }

  void check_sizes(Dims const* dims, int32_t /*count*/) const override {
    Dims const &x = dims[0], &addend = dims[1], &weight = dims[2], &bias = dims[3];
    if (x.nbDims < 1) fail(0, "", x);
    bool same = addend.nbDims == x.nbDims;
    for (int32_t i = 0; same && i < x.nbDims; ++i) same = !differ(addend.d[i], x.d[i]);
    if (!same) fail(1, " as x", addend);
    if (weight.nbDims != 2) fail(2, "", weight);
    const int64_t inputs = last_size(x), outputs = weight.d[0];
    if (differ(inputs, weight.d[1])) {
      fail(2, " with K=" + std::to_string(inputs) + " (from x)", weight);
    }
    if (bias.nbDims != 1) fail(3, "", bias);
    if (differ(outputs, bias.d[0])) {
      fail(3, " with N=" + std::to_string(outputs) + " (from weight)", bias);
    }
  }

  void set_output_shape(DimsExprs const* inputs, DimsExprs& output,
                        IExprBuilder& /*expressions*/) const override {
    output = inputs[0];
    output.d[output.nbDims - 1] = inputs[2].d[0];
  }

  LinearOfSumProblem make_problem(PluginTensorDesc const* inputs) const override {
    Dims const &x = inputs[0].dims, &weight = inputs[2].dims;
    return {count_rows(x), last_size(x), weight.d[0], convert(inputs[0].type)};
  }

  cudaError_t launch(LinearOfSumProblem const& problem, void const* const* inputs,
                     void* const* outputs, void* /*work*/, cudaStream_t stream) const override {
    return linear_of_sum(problem, {inputs[0], inputs[1], inputs[2], inputs[3], outputs[0]}, stream);
  }

  std::string describe(LinearOfSumProblem const& problem) const override {
    return "M=" + std::to_string(problem.rows) + " K=" + std::to_string(problem.inputs) +
           " N=" + std::to_string(problem.outputs) + " " + msda::name(problem.type);
  }

  std::vector<PluginField> fields() const override { return {}; }
};

}  // namespace

Creator& linear_of_sum_creator() {
  static Creator creator(kLinearOfSum, {}, "none", [](FieldValues const& /*fields*/) -> Plugin* {
    return new LinearOfSumPlugin();
  });
  return creator;
}

}  // namespace msda::trt
