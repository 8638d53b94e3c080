// The TensorRT plugin of window attention.
#include <string>

#include "creator.h"
#include "msda/launchers.h"

namespace msda::trt {
namespace {

constexpr char kWindowAttention[] = "WindowAttention";
constexpr char kWindowSize[] = "window_size";
constexpr char kShift[] = "shift";
constexpr char kOutputScale[] = "output_scale";
constexpr char kNumInputs[] = "num_inputs";

std::string fields_text(int32_t window_size, int32_t shift, float output_scale) {
  std::string text =
      "window_size=" + std::to_string(window_size) + " shift=" + std::to_string(shift);
  if (output_scale != 0) text += " output_scale=" + number_text(output_scale);
  return text;
}

class WindowPlugin final : public KernelPlugin<WindowProblem> {
 public:
  // Throws std::invalid_argument for numbers that the kernels do not take. An `output_scale` of 0
  // is none. `num_inputs` is 0 where the network will tell it.
  WindowPlugin(int32_t window_size, int32_t shift, float output_scale, int32_t num_inputs)
      : KernelPlugin(kWindowAttention, fields_text(window_size, shift, output_scale),
                     {{"qkv", "[N, H, W, 3*C]"}, {"bias", "[heads, L, L]"}, {"padding", "[3*C]"}},
                     /*last_is_optional=*/true),
        window_size_(window_size),
        shift_(shift),
        output_scale_(output_scale) {
    check_message(check(options()));
    num_inputs_ = num_inputs;
  }

 private:
  Plugin* copy() const override { return new WindowPlugin(*this); }

  DataType output_type(int32_t /*index*/, DataType const* types) const override {
    return options().quantized_output() ? DataType::kINT8 : types[0];
  }

  void check_sizes(Dims const* dims, int32_t count) const override {
    static constexpr int32_t kRanks[] = {4, 3, 1};
    for (int32_t i = 0; i < count; ++i) {
      if (dims[i].nbDims != kRanks[i]) fail(i, "", dims[i]);
    }
    const int64_t columns = dims[0].d[3], heads = dims[1].d[0];
    const int64_t cells = int64_t{window_size_} * window_size_;
    for (int32_t axis : {1, 2}) {
      if (differ(dims[1].d[axis], cells)) {
        fail(1, " with L=" + std::to_string(cells) + " (window_size squared)", dims[1]);
      }
    }
    if (heads == 0) fail(1, " with heads of 1 or more", dims[1]);
    if (columns >= 0 && columns % 3 != 0) fail(0, "", dims[0]);
    if (columns >= 0 && heads > 0 && columns / 3 % heads != 0) {
      fail(0, " with C a multiple of heads=" + std::to_string(heads) + " (from bias)", dims[0]);
    }
    if (count == 3 && differ(columns, dims[2].d[0])) {
      fail(2, " with 3*C=" + std::to_string(columns) + " (from qkv)", dims[2]);
    }
  }

  void set_output_shape(DimsExprs const* inputs, DimsExprs& output,
                        IExprBuilder& expressions) const override {
    output.nbDims = 4;  // [N, H, W, C]
    for (int32_t axis = 0; axis < 3; ++axis) output.d[axis] = inputs[0].d[axis];
    output.d[3] = expressions.operation(nvinfer1::DimensionOperation::kFLOOR_DIV, *inputs[0].d[3],
                                        *expressions.constant(3));
  }

  // The problem without sizes and type.
  WindowProblem options() const {
    WindowProblem problem;
    problem.window_size = window_size_;
    problem.shift = shift_;
    problem.output_scale = output_scale_;
    return problem;
  }

  WindowProblem make_problem(PluginTensorDesc const* inputs) const override {
    Dims const &qkv = inputs[0].dims, &bias = inputs[1].dims;
    WindowProblem problem = options();
    problem.batch_size = qkv.d[0];
    problem.height = qkv.d[1];
    problem.width = qkv.d[2];
    problem.num_heads = bias.d[0];
    problem.head_dim = qkv.d[3] / 3 / problem.num_heads;
    problem.type = convert(inputs[0].type);
    return problem;
  }

  cudaError_t launch(WindowProblem const& problem, void const* const* inputs, void* const* outputs,
                     void* /*work*/, cudaStream_t stream) const override {
    void const* const padding = num_inputs_ == 3 ? inputs[2] : nullptr;
    return window_attention(problem, {inputs[0], inputs[1], padding, outputs[0]}, stream);
  }

  std::string describe(WindowProblem const& problem) const override {
    return "N=" + std::to_string(problem.batch_size) + " H=" + std::to_string(problem.height) +
           " W=" + std::to_string(problem.width) + " heads=" + std::to_string(problem.num_heads) +
           " d=" + std::to_string(problem.head_dim) +
           " window_size=" + std::to_string(problem.window_size) +
           " shift=" + std::to_string(problem.shift) + " " + msda::name(problem.type) +
           (problem.quantized_output() ? " to int8" : "");
  }

  std::vector<PluginField> fields() const override {
    std::vector<PluginField> result{{kWindowSize, &window_size_, kInt32, 1},
                                    {kShift, &shift_, kInt32, 1},
                                    {kNumInputs, &num_inputs_, kInt32, 1}};
    if (output_scale_ != 0) result.emplace_back(kOutputScale, &output_scale_, kFloat32, 1);
    return result;
  }

  int32_t window_size_;
  int32_t shift_;
  float output_scale_;  // 0: the result has the type of qkv
};

}  // namespace

Creator& window_attention_creator() {
  static Creator creator(
      kWindowAttention,
      {number_field(kWindowSize, "0 or more"), number_field(kShift, "0 or more"),
       real_field(kOutputScale, Presence::kOptional),
       number_field(kNumInputs, "0 or more", Presence::kSerialised)},
      "window_size, shift and optional output_scale", [](FieldValues const& fields) -> Plugin* {
        return new WindowPlugin(fields.number(kWindowSize), fields.number(kShift),
                                fields.real(kOutputScale), fields.number(kNumInputs));
      });
  return creator;
}

}  // namespace msda::trt
