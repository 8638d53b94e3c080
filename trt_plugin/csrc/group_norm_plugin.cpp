// The TensorRT plugin of group normalisation.
#include <string>

#include "creator.h"
#include "msda/launchers.h"

namespace msda::trt {
namespace {

constexpr char kGroupNorm[] = "GroupNorm";

class GroupNormPlugin final : public KernelPlugin<GroupNormProblem> {
 public:
  // Throws std::invalid_argument for numbers that the kernels do not take.
  GroupNormPlugin(int32_t num_groups, float eps)
      : KernelPlugin(kGroupNorm,
                     "num_groups=" + std::to_string(num_groups) + " eps=" + number_text(eps),
                     {{"x", "[N, H, W, C] or [N, S, C]"}, {"weight", "[C]"}, {"bias", "[C]"}}),
        num_groups_(num_groups),
        eps_(eps) {
    check_message(check(options()));
  }

 private:
  Plugin* copy() const override { return new GroupNormPlugin(*this); }

  void check_sizes(Dims const* dims, int32_t count) const override {
    if (dims[0].nbDims != 3 && dims[0].nbDims != 4) fail(0, "", dims[0]);
    const int64_t channels = last_size(dims[0]);
    if (channels >= 0 && channels % num_groups_ != 0) {
      fail(0, " with C a multiple of num_groups=" + std::to_string(num_groups_), dims[0]);
    }
    for (int32_t i = 1; i < count; ++i) {
      if (dims[i].nbDims != 1) fail(i, "", dims[i]);
      if (differ(channels, dims[i].d[0])) {
        fail(i, " with C=" + std::to_string(channels) + " (from x)", dims[i]);
      }
    }
  }

  // The problem without sizes and type.
  GroupNormProblem options() const {
    GroupNormProblem problem;
    problem.num_groups = num_groups_;
    problem.eps = eps_;
    return problem;
  }

  GroupNormProblem make_problem(PluginTensorDesc const* inputs) const override {
    Dims const& x = inputs[0].dims;
    GroupNormProblem problem = options();
    problem.batch_size = x.d[0];
    problem.cells[0] = x.nbDims == 4 ? int64_t{x.d[1]} * x.d[2] : x.d[1];
    problem.channels = last_size(x);
    problem.type = convert(inputs[0].type);
    return problem;
  }

  size_t work_bytes(PluginTensorDesc const* largest, int32_t count) const override {
    return group_norm_work(read_problem(largest, count));
  }

  cudaError_t launch(GroupNormProblem const& problem, void const* const* inputs,
                     void* const* outputs, void* work, cudaStream_t stream) const override {
    GroupNormArguments arguments;
    arguments.levels[0] = {inputs[0], inputs[1], inputs[2]};
    arguments.output = outputs[0];
    arguments.work = work;
    return group_norm(problem, arguments, stream);
  }

  std::string describe(GroupNormProblem const& problem) const override {
    return "N=" + std::to_string(problem.batch_size) +
           " cells=" + std::to_string(problem.cells[0]) + " C=" + std::to_string(problem.channels) +
           " num_groups=" + std::to_string(problem.num_groups) + " " + msda::name(problem.type);
  }

  std::vector<PluginField> fields() const override {
    return {{kNumGroups, &num_groups_, kInt32, 1}, {kEps, &eps_, kFloat32, 1}};
  }

  int32_t num_groups_;
  float eps_;
};

}  // namespace

Creator& group_norm_creator() {
  static Creator creator(kGroupNorm, {number_field(kNumGroups, "1 or more"), real_field(kEps)},
                         "num_groups and eps", [](FieldValues const& fields) -> Plugin* {
                           return new GroupNormPlugin(fields.number(kNumGroups), fields.real(kEps));
                         });
  return creator;
}

}  // namespace msda::trt
