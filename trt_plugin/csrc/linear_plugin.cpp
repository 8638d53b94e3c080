// The TensorRT plugin of linear layers.
#include <string>

#include "creator.h"
#include "msda/launchers.h"

namespace msda::trt {
namespace {

constexpr char kLinear[] = "Linear";
constexpr char kNormalise[] = "normalise";

class LinearPlugin final : public KernelPlugin<LinearProblem> {
 public:
  // The plugin ignores the inputs of a residual, mask or normalisation that a layer does not have.
  // Throws std::invalid_argument for options that the kernels do not take.
  LinearPlugin(Activation activation, bool add_residual, bool multiply_mask, bool normalise,
               float eps)
      : KernelPlugin(kLinear,
                     "activation=" + std::to_string(static_cast<int32_t>(activation)) +
                         " add_residual=" + std::to_string(add_residual) +
                         " multiply_mask=" + std::to_string(multiply_mask) +
                         " normalise=" + std::to_string(normalise) + " eps=" + number_text(eps),
                     {{"x", "[..., K]"},
                      {"weight", "[N, K]"},
                      {"bias", "[N]"},
                      {"residual", "[..., N]"},
                      {"mask", "[..., 1]"},
                      {"norm_weight", "[N]"},
                      {"norm_bias", "[N]"}}),
        activation_(static_cast<int32_t>(activation)),
        add_residual_(add_residual),
        multiply_mask_(multiply_mask),
        normalise_(normalise),
        eps_(eps) {
    check_message(check(options()));
  }

 private:
  Plugin* copy() const override { return new LinearPlugin(*this); }

  void check_sizes(Dims const* dims, int32_t count) const override {
    Dims const &x = dims[0], &weight = dims[1], &bias = dims[2];
    if (x.nbDims < 1) fail(0, "", x);
    if (weight.nbDims != 2) fail(1, "", weight);
    const int64_t inputs = last_size(x), outputs = weight.d[0];
    if (differ(weight.d[1], inputs)) {
      fail(1, " with K=" + std::to_string(inputs) + " (from x)", weight);
    }
    const std::string columns = " with N=" + std::to_string(outputs) + " (from weight)";
    if (bias.nbDims != 1 || differ(bias.d[0], outputs)) fail(2, columns, bias);
    if (add_residual_ == 1) check_rows(3, dims, outputs, columns);
    if (multiply_mask_ == 1) check_rows(4, dims, 1, "");
    for (int32_t i = 5; i < count && normalise_ == 1; ++i) {
      if (dims[i].nbDims != 1 || differ(dims[i].d[0], outputs)) fail(i, columns, dims[i]);
    }
  }

  void set_output_shape(DimsExprs const* inputs, DimsExprs& output,
                        IExprBuilder& /*expressions*/) const override {
    output = inputs[0];  // [..., N]
    output.d[output.nbDims - 1] = inputs[1].d[0];
  }

  // The problem without sizes and type.
  LinearProblem options() const {
    LinearProblem problem;
    problem.activation = static_cast<Activation>(activation_);
    problem.residual = add_residual_ == 1;
    problem.masked = multiply_mask_ == 1;
    problem.normed = normalise_ == 1;
    problem.eps = eps_;
    return problem;
  }

  LinearProblem make_problem(PluginTensorDesc const* inputs) const override {
    Dims const &x = inputs[0].dims, &weight = inputs[1].dims;
    LinearProblem problem = options();
    problem.rows = count_rows(x);
    problem.inputs = weight.d[1];
    problem.outputs = weight.d[0];
    problem.type = convert(inputs[0].type);
    return problem;
  }

  cudaError_t launch(LinearProblem const& problem, void const* const* inputs, void* const* outputs,
                     void* /*work*/, cudaStream_t stream) const override {
    const LinearArguments arguments{inputs[0],
                                    inputs[1],
                                    inputs[2],
                                    problem.residual ? inputs[3] : nullptr,
                                    problem.masked ? inputs[4] : nullptr,
                                    problem.normed ? inputs[5] : nullptr,
                                    problem.normed ? inputs[6] : nullptr,
                                    outputs[0]};
    return linear(problem, arguments, stream);
  }

  std::string describe(LinearProblem const& problem) const override {
    return "M=" + std::to_string(problem.rows) + " K=" + std::to_string(problem.inputs) +
           " N=" + std::to_string(problem.outputs) +
           " activation=" + std::to_string(static_cast<int32_t>(problem.activation)) +
           " residual=" + std::to_string(problem.residual) +
           " mask=" + std::to_string(problem.masked) + " norm=" + std::to_string(problem.normed) +
           " " + msda::name(problem.type);
  }

  std::vector<PluginField> fields() const override {
    return {{kActivation, &activation_, kInt32, 1},
            {kAddResidual, &add_residual_, kInt32, 1},
            {kMultiplyMask, &multiply_mask_, kInt32, 1},
            {kNormalise, &normalise_, kInt32, 1},
            {kEps, &eps_, kFloat32, 1}};
  }

  int32_t activation_;     // a number of msda::Activation
  int32_t add_residual_;   // 0 or 1
  int32_t multiply_mask_;  // 0 or 1
  int32_t normalise_;      // 0 or 1
  float eps_;
};

}  // namespace

Creator& linear_creator() {
  static Creator creator(kLinear,
                         {activation_field(), flag_field(kAddResidual), flag_field(kMultiplyMask),
                          flag_field(kNormalise), real_field(kEps)},
                         "activation, add_residual, multiply_mask, normalise and eps",
                         [](FieldValues const& fields) -> Plugin* {
                           return new LinearPlugin(fields.activation(), fields.flag(kAddResidual),
                                                   fields.flag(kMultiplyMask),
                                                   fields.flag(kNormalise), fields.real(kEps));
                         });
  return creator;
}

}  // namespace msda::trt
