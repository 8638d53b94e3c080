// The TensorRT plugin of linear layers with 8-bit inputs.
//
// x is the result of a QuantizeLinear, without a DequantizeLinear between: the plugin takes the
// place of the DequantizeLinear, and of the QuantizeLinear behind it where its result has 8 bits.
// TensorRT lets weights in 8 bits reach no layer but DequantizeLinear. The weights are therefore
// int32: a number holds four of a row, the first in its lowest byte.
#include <stdexcept>
#include <string>

#include "creator.h"
#include "msda/launchers.h"

namespace msda::trt {
namespace {

constexpr char kQuantizedLinear[] = "QuantizedLinear";
constexpr char kOutputScale[] = "output_scale";

class QuantizedLinearPlugin final : public KernelPlugin<QuantizedLinearProblem> {
 public:
  // The plugin ignores the input of a residual or mask that a layer does not have, and the scale of
  // a 16-bit output.
  QuantizedLinearPlugin(Activation activation, bool add_residual, bool multiply_mask,
                        int32_t output_type, float output_scale)
      : KernelPlugin(kQuantizedLinear,
                     "activation=" + std::to_string(static_cast<int32_t>(activation)) +
                         " add_residual=" + std::to_string(add_residual) +
                         " multiply_mask=" + std::to_string(multiply_mask) +
                         " output_type=" + std::to_string(output_type) +
                         " output_scale=" + std::to_string(output_scale),
                     {{"x", "[..., K]"},
                      {"weight", "[N, K/4]"},
                      {"scale", "[N]"},
                      {"bias", "[N]"},
                      {"residual", "[..., N]"},
                      {"mask", "[..., 1]"}}),
        activation_(static_cast<int32_t>(activation)),
        add_residual_(add_residual),
        multiply_mask_(multiply_mask),
        output_type_(output_type),
        output_scale_(output_scale) {}

 private:
  Plugin* copy() const override { return new QuantizedLinearPlugin(*this); }

  bool quantized() const { return output_type_ == kOnnxInt8 || output_type_ == kOnnxFloat8; }

  bool accepts_type(int32_t index, DataType const* types) const override {
    const DataType type = types[index];
    const auto is_result = [&] {
      if (quantized()) return type == DataType::kHALF || type == DataType::kBF16;
      return type == output_type(0, types);
    };
    switch (index) {
      case 0:
        if (quantized()) {
          return type == (output_type_ == kOnnxInt8 ? DataType::kINT8 : DataType::kFP8);
        }
        return type == DataType::kINT8 || type == DataType::kFP8;
      case 1:
        return type == DataType::kINT32;
      case 4:
        return add_residual_ == 1 ? is_result() : type == DataType::kFLOAT;
      case 5:
        if (multiply_mask_ == 0) return type == DataType::kFLOAT;
        return add_residual_ == 1 ? type == types[4] : is_result();
      default:
        return type == DataType::kFLOAT;
    }
  }

  std::string expected_type(int32_t index, DataType const* types) const override {
    if (index == 0) {
      return output_type_ == kOnnxInt8     ? "int8 (output_type)"
             : output_type_ == kOnnxFloat8 ? "float8_e4m3 (output_type)"
                                           : "int8 or float8_e4m3";
    }
    if (index == 1) return "int32, four numbers of 8 bits each";
    if ((index == 4 && add_residual_ == 1) || (index == 5 && multiply_mask_ == 1)) {
      return index == 5 && add_residual_ == 1 ? type_name(types[4]) + " (as residual)"
             : quantized()                    ? "float16 or bfloat16"
                                              : type_name(output_type(0, types)) + " (output_type)";
    }
    return "float32";
  }

  DataType output_type(int32_t /*index*/, DataType const* types) const override {
    return output_type_ == kOnnxFloat16    ? DataType::kHALF
           : output_type_ == kOnnxBFloat16 ? DataType::kBF16
                                           : types[0];
  }

  void check_sizes(Dims const* dims, int32_t /*count*/) const override {
    Dims const &x = dims[0], &weight = dims[1];
    if (x.nbDims < 1) fail(0, "", x);
    if (weight.nbDims != 2) fail(1, "", weight);
    const int64_t inputs = last_size(x), outputs = weight.d[0];
    if (inputs >= 0 && weight.d[1] >= 0 && weight.d[1] * 4 != inputs) {
      fail(1, " with K=" + std::to_string(inputs) + " (from x)", weight);
    }
    const std::string columns = " with N=" + std::to_string(outputs) + " (from weight)";
    for (const int32_t i : {2, 3}) {
      if (dims[i].nbDims != 1 || differ(dims[i].d[0], outputs)) fail(i, columns, dims[i]);
    }
    if (add_residual_ == 1) check_rows(4, dims, outputs, columns);
    if (multiply_mask_ == 1) check_rows(5, dims, 1, "");
  }

  void set_output_shape(DimsExprs const* inputs, DimsExprs& output,
                        IExprBuilder& /*expressions*/) const override {
    output = inputs[0];  // [..., N]
    output.d[output.nbDims - 1] = inputs[1].d[0];
  }

  QuantizedLinearProblem make_problem(PluginTensorDesc const* inputs) const override {
    Dims const &x = inputs[0].dims, &weight = inputs[1].dims;
    QuantizedLinearProblem problem;
    problem.rows = count_rows(x);
    problem.inputs = last_size(x);
    problem.outputs = weight.d[0];
    problem.activation = static_cast<Activation>(activation_);
    problem.residual = add_residual_ == 1;
    problem.masked = multiply_mask_ == 1;
    problem.quantized_output = quantized();
    problem.input_type = inputs[0].type == DataType::kINT8 ? EightBits::kInt8 : EightBits::kFloat8;
    const DataType wide = !quantized()       ? output_type(0, &inputs[0].type)
                          : problem.residual ? inputs[4].type
                          : problem.masked   ? inputs[5].type
                                             : DataType::kHALF;
    problem.type = convert(wide);
    problem.output_scale = quantized() ? output_scale_ : 1;
    return problem;
  }

  cudaError_t launch(QuantizedLinearProblem const& problem, void const* const* inputs,
                     void* const* outputs, void* /*work*/, cudaStream_t stream) const override {
    const QuantizedLinearArguments arguments{inputs[0],
                                             inputs[1],
                                             inputs[2],
                                             inputs[3],
                                             problem.residual ? inputs[4] : nullptr,
                                             problem.masked ? inputs[5] : nullptr,
                                             outputs[0]};
    return quantized_linear(problem, arguments, stream);
  }

  std::string describe(QuantizedLinearProblem const& problem) const override {
    return "M=" + std::to_string(problem.rows) + " K=" + std::to_string(problem.inputs) +
           " N=" + std::to_string(problem.outputs) +
           " activation=" + std::to_string(static_cast<int32_t>(problem.activation)) +
           " residual=" + std::to_string(problem.residual) +
           " mask=" + std::to_string(problem.masked) + " " + msda::name(problem.input_type) +
           " to " +
           (problem.quantized_output ? msda::name(problem.input_type) : msda::name(problem.type));
  }

  std::vector<PluginField> fields() const override {
    return {{kActivation, &activation_, kInt32, 1},
            {kAddResidual, &add_residual_, kInt32, 1},
            {kMultiplyMask, &multiply_mask_, kInt32, 1},
            {kOutputType, &output_type_, kInt32, 1},
            {kOutputScale, &output_scale_, kFloat32, 1}};
  }

  int32_t activation_;     // a number of msda::Activation
  int32_t add_residual_;   // 0 or 1
  int32_t multiply_mask_;  // 0 or 1
  int32_t output_type_;
  float output_scale_;
};

int32_t read_output_type(PluginField const& field) {
  const int32_t type = read_number(field, "3, 10, 16 or 17");
  for (const int32_t known : {kOnnxInt8, kOnnxFloat16, kOnnxBFloat16, kOnnxFloat8}) {
    if (type == known) return type;
  }
  throw std::invalid_argument(
      "output_type: expected 3 (int8), 10 (float16), 16 (bfloat16) or 17 (float8), got " +
      std::to_string(type));
}

}  // namespace

Creator& quantized_linear_creator() {
  static Creator creator(kQuantizedLinear,
                         {activation_field(),
                          flag_field(kAddResidual),
                          flag_field(kMultiplyMask),
                          {{kOutputType, nullptr, kInt32, 1}, read_output_type},
                          real_field(kOutputScale)},
                         "activation, add_residual, multiply_mask, output_type and output_scale",
                         [](FieldValues const& fields) -> Plugin* {
                           return new QuantizedLinearPlugin(
                               fields.activation(), fields.flag(kAddResidual),
                               fields.flag(kMultiplyMask), fields.number(kOutputType),
                               fields.real(kOutputScale));
                         });
  return creator;
}

}  // namespace msda::trt
