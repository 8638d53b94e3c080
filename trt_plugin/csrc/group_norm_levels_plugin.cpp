// The TensorRT plugin of group normalisation of several levels. The result has the cells of all
// levels. Unless next_scale is 0, the second output is the result in int8.
#include <algorithm>
#include <string>
#include <vector>

#include "creator.h"
#include "msda/launchers.h"

namespace msda::trt {
namespace {

using nvinfer1::DimensionOperation;
using nvinfer1::TensorFormat;

constexpr char kGroupNormLevels[] = "GroupNormLevels";
constexpr char kNumLevels[] = "num_levels";
constexpr int32_t kTensors = 3;  // of a level: x, weight, bias

std::vector<Input> inputs_of(int32_t num_levels) {
  std::vector<Input> inputs;
  for (int32_t level = 0; level < std::min(num_levels, kMostNormLevels); ++level) {
    const std::string index = "[" + std::to_string(level) + "]";
    inputs.push_back({"levels" + index, "[N, S, C] or [N, C, H, W]"});
    inputs.push_back({"weights" + index, "[C]"});
    inputs.push_back({"biases" + index, "[C]"});
  }
  return inputs;
}

bool is_map(Dims const& dims) { return dims.nbDims == 4; }
int64_t channels_of(Dims const& level) { return is_map(level) ? level.d[1] : level.d[2]; }

class GroupNormLevelsPlugin final : public KernelPlugin<GroupNormProblem> {
 public:
  // Throws std::invalid_argument for numbers that the kernels do not take.
  GroupNormLevelsPlugin(int32_t num_levels, int32_t num_groups, float eps, float next_scale)
      : KernelPlugin(kGroupNormLevels,
                     "num_levels=" + std::to_string(num_levels) +
                         " num_groups=" + std::to_string(num_groups) + " eps=" + number_text(eps) +
                         " next_scale=" + number_text(next_scale),
                     inputs_of(num_levels)),
        num_levels_(num_levels),
        num_groups_(num_groups),
        eps_(eps),
        next_scale_(next_scale) {
    check_message(check(options()));
  }

  int32_t getNbOutputs() const noexcept override { return next_scale_ == 0 ? 1 : 2; }

 private:
  Plugin* copy() const override { return new GroupNormLevelsPlugin(*this); }

  DataType output_type(int32_t index, DataType const* types) const override {
    return index == 1 ? DataType::kINT8 : types[0];
  }

  // A map with channels innermost has the bytes of its cells.
  TensorFormat format(Dims const& dims, DataType type) const override {
    if (!is_map(dims)) return TensorFormat::kLINEAR;
    return type == DataType::kFLOAT ? TensorFormat::kHWC : TensorFormat::kHWC8;
  }

  void check_sizes(Dims const* dims, int32_t count) const override {
    for (int32_t i = 0; i < count; i += kTensors) {
      Dims const& x = dims[i];
      if (x.nbDims != 3 && x.nbDims != 4) fail(i, "", x);
      const int64_t channels = channels_of(x), common = channels_of(dims[0]);
      if (channels >= 0 && channels % num_groups_ != 0) {
        fail(i, " with C a multiple of num_groups=" + std::to_string(num_groups_), x);
      }
      // TensorRT fills the cells of other maps up to 8 channels.
      if (is_map(x) && channels >= 0 && channels % 8 != 0) fail(i, " with C a multiple of 8", x);
      if (differ(x.d[0], dims[0].d[0]) || differ(channels, common)) {
        fail(i, " with N and C of levels[0]", x);
      }
      for (int32_t j = i + 1; j < i + kTensors; ++j) {
        if (dims[j].nbDims != 1 || differ(channels, dims[j].d[0])) {
          fail(j, " with C=" + std::to_string(channels) + " (from levels)", dims[j]);
        }
      }
    }
  }

  void set_output_shape(DimsExprs const* inputs, DimsExprs& output,
                        IExprBuilder& expressions) const override {
    nvinfer1::IDimensionExpr const* cells = expressions.constant(0);
    for (int32_t level = 0; level < num_levels_; ++level) {
      DimsExprs const& x = inputs[kTensors * level];
      auto const* own = x.nbDims == 4
                            ? expressions.operation(DimensionOperation::kPROD, *x.d[2], *x.d[3])
                            : x.d[1];
      cells = expressions.operation(DimensionOperation::kSUM, *cells, *own);
    }
    output.nbDims = 3;  // [N, sum of S, C]
    output.d[0] = inputs[0].d[0];
    output.d[1] = cells;
    output.d[2] = inputs[0].d[inputs[0].nbDims == 4 ? 1 : 2];
  }

  // The problem without sizes and type.
  GroupNormProblem options() const {
    GroupNormProblem problem;
    problem.num_levels = num_levels_;
    problem.num_groups = num_groups_;
    problem.eps = eps_;
    problem.next_scale = next_scale_;
    return problem;
  }

  GroupNormProblem make_problem(PluginTensorDesc const* inputs) const override {
    GroupNormProblem problem = options();
    problem.batch_size = inputs[0].dims.d[0];
    problem.channels = channels_of(inputs[0].dims);
    problem.type = convert(inputs[0].type);
    for (int32_t level = 0; level < num_levels_; ++level) {
      Dims const& x = inputs[kTensors * level].dims;
      problem.cells[level] = is_map(x) ? int64_t{x.d[2]} * x.d[3] : x.d[1];
    }
    return problem;
  }

  size_t work_bytes(PluginTensorDesc const* largest, int32_t count) const override {
    return group_norm_work(read_problem(largest, count));
  }

  cudaError_t launch(GroupNormProblem const& problem, void const* const* inputs,
                     void* const* outputs, void* work, cudaStream_t stream) const override {
    GroupNormArguments arguments;
    for (int32_t level = 0; level < num_levels_; ++level) {
      void const* const* const own = inputs + kTensors * level;
      arguments.levels[level] = {own[0], own[1], own[2]};
    }
    arguments.output = outputs[0];
    arguments.quantized = next_scale_ == 0 ? nullptr : outputs[1];
    arguments.work = work;
    return group_norm(problem, arguments, stream);
  }

  std::string describe(GroupNormProblem const& problem) const override {
    return "N=" + std::to_string(problem.batch_size) +
           " cells=" + std::to_string(problem.num_cells()) +
           " C=" + std::to_string(problem.channels) +
           " num_groups=" + std::to_string(problem.num_groups) + " " + msda::name(problem.type);
  }

  std::vector<PluginField> fields() const override {
    return {{kNumLevels, &num_levels_, kInt32, 1},
            {kNumGroups, &num_groups_, kInt32, 1},
            {kEps, &eps_, kFloat32, 1},
            {kNextScale, &next_scale_, kFloat32, 1}};
  }

  int32_t num_levels_;
  int32_t num_groups_;
  float eps_;
  float next_scale_;
};

}  // namespace

Creator& group_norm_levels_creator() {
  static Creator creator(
      kGroupNormLevels,
      {number_field(kNumLevels, "1 to 8"), number_field(kNumGroups, "1 or more"), real_field(kEps),
       real_field(kNextScale)},
      "num_levels, num_groups, eps and next_scale", [](FieldValues const& fields) -> Plugin* {
        return new GroupNormLevelsPlugin(fields.number(kNumLevels), fields.number(kNumGroups),
                                         fields.real(kEps), fields.real(kNextScale));
      });
  return creator;
}

}  // namespace msda::trt
