#include "window_plugin.h"

#include <stdexcept>
#include <string>

#include "msda/launchers.h"
#include "tensors.h"

namespace msda::trt {
namespace {

using nvinfer1::Dims;

constexpr int32_t kFewestInputs = 2;
constexpr char const* kInputs[] = {"qkv", "bias", "padding"};  // padding is optional
constexpr char const* kShapes[] = {"[N, H, W, 3*C]", "[heads, L, L]", "[3*C]"};
constexpr int32_t kRanks[] = {4, 3, 1};

std::string describe(WindowProblem const& problem) {
  return "N=" + std::to_string(problem.batch_size) + " H=" + std::to_string(problem.height) +
         " W=" + std::to_string(problem.width) + " heads=" + std::to_string(problem.num_heads) +
         " d=" + std::to_string(problem.head_dim) +
         " window_size=" + std::to_string(problem.window_size) +
         " shift=" + std::to_string(problem.shift) + " " + msda::name(problem.type);
}

bool fits(int32_t count) { return count == kFewestInputs || count == kFewestInputs + 1; }

void check_count(int32_t count) {
  if (fits(count)) return;
  throw std::invalid_argument("expected 2 or 3 inputs (qkv, bias, padding), got " +
                              std::to_string(count));
}

[[noreturn]] void fail(int32_t index, std::string const& because, Dims const& dims) {
  fail_shape(kInputs[index], kShapes[index], because, dims);
}

}  // namespace

WindowPlugin::WindowPlugin(int32_t window_size, int32_t shift, int32_t num_inputs)
    : Plugin(kWindowAttention,
             "window_size=" + std::to_string(window_size) + " shift=" + std::to_string(shift)),
      window_size_(window_size),
      shift_(shift) {
  WindowProblem problem;
  problem.window_size = window_size;
  problem.shift = shift;
  check_message(check(problem));
  num_inputs_ = num_inputs;
}

bool WindowPlugin::accepts_count(int32_t num_inputs) const { return fits(num_inputs); }

void WindowPlugin::check_types(nvinfer1::DataType const* types, int32_t count) const {
  check_count(count);
  check_one_type(kInputs, types, count);
}

void WindowPlugin::check_sizes(Dims const* dims, int32_t count) const {
  check_count(count);
  for (int32_t i = 0; i < count; ++i) {
    if (dims[i].nbDims != kRanks[i]) fail(i, "", dims[i]);
  }
  const int64_t columns = dims[0].d[3], heads = dims[1].d[0];
  const int64_t cells = int64_t{window_size_} * window_size_;
  for (int32_t axis : {1, 2}) {
    if (dims[1].d[axis] >= 0 && dims[1].d[axis] != cells) {
      fail(1, " with L=" + std::to_string(cells) + " (window_size squared)", dims[1]);
    }
  }
  if (heads == 0) fail(1, " with heads of 1 or more", dims[1]);
  if (columns >= 0 && columns % 3 != 0) fail(0, "", dims[0]);
  if (columns >= 0 && heads > 0 && columns / 3 % heads != 0) {
    fail(0, " with C a multiple of heads=" + std::to_string(heads) + " (from bias)", dims[0]);
  }
  if (count > kFewestInputs && columns >= 0 && dims[2].d[0] >= 0 && dims[2].d[0] != columns) {
    fail(2, " with 3*C=" + std::to_string(columns) + " (from qkv)", dims[2]);
  }
}

void WindowPlugin::check_problem(nvinfer1::PluginTensorDesc const* inputs, int32_t count) const {
  read_problem(inputs, count);
}

WindowProblem WindowPlugin::read_problem(nvinfer1::PluginTensorDesc const* inputs,
                                         int32_t count) const {
  check_inputs(inputs, count);
  Dims const &qkv = inputs[0].dims, &bias = inputs[1].dims;
  WindowProblem problem;
  problem.batch_size = qkv.d[0];
  problem.height = qkv.d[1];
  problem.width = qkv.d[2];
  problem.num_heads = bias.d[0];
  problem.head_dim = qkv.d[3] / 3 / problem.num_heads;
  problem.window_size = window_size_;
  problem.shift = shift_;
  problem.type = convert(inputs[0].type);
  check_message(check(problem));
  return problem;
}

void WindowPlugin::set_output_shape(nvinfer1::DimsExprs const* inputs, nvinfer1::DimsExprs& output,
                                    nvinfer1::IExprBuilder& expressions) const {
  output.nbDims = 4;  // [N, H, W, C]
  for (int32_t axis = 0; axis < 3; ++axis) output.d[axis] = inputs[0].d[axis];
  output.d[3] = expressions.operation(nvinfer1::DimensionOperation::kFLOOR_DIV, *inputs[0].d[3],
                                      *expressions.constant(3));
}

void WindowPlugin::launch(nvinfer1::PluginTensorDesc const* descriptions, int32_t count,
                          void const* const* inputs, void* output, void* /*work*/,
                          cudaStream_t stream) const {
  const WindowProblem problem = read_problem(descriptions, count);
  WindowArguments arguments;
  arguments.qkv = inputs[0];
  arguments.bias = inputs[1];
  if (count > kFewestInputs) arguments.padding = inputs[2];
  arguments.output = output;
  check_launch(window_attention(problem, arguments, stream), describe(problem));
}

std::vector<nvinfer1::PluginField> WindowPlugin::fields() const {
  constexpr auto kInt32 = nvinfer1::PluginFieldType::kINT32;
  return {{kWindowSize, &window_size_, kInt32, 1},
          {kShift, &shift_, kInt32, 1},
          {kNumInputs, &num_inputs_, kInt32, 1}};
}

}  // namespace msda::trt
