// The TensorRT plugin of feed-forward blocks.
#include <algorithm>
#include <string>

#include "creator.h"
#include "msda/launchers.h"

namespace msda::trt {
namespace {

constexpr char kFeedForward[] = "FeedForward";

class FeedForwardPlugin final : public KernelPlugin<FeedForwardProblem> {
 public:
  explicit FeedForwardPlugin(float eps)
      : KernelPlugin(kFeedForward, "eps=" + number_text(eps),
                     {{"x", "[..., C]"},
                      {"weight1", "[H, C]"},
                      {"bias1", "[H]"},
                      {"weight2", "[C, H]"},
                      {"bias2", "[C]"},
                      {"norm_weight", "[C]"},
                      {"norm_bias", "[C]"}}),
        eps_(eps) {}

 private:
  Plugin* copy() const override { return new FeedForwardPlugin(*this); }

  void check_sizes(Dims const* dims, int32_t count) const override {
    Dims const &x = dims[0], &weight1 = dims[1], &bias1 = dims[2], &weight2 = dims[3];
    if (x.nbDims < 1) fail(0, "", x);
    if (weight1.nbDims != 2) fail(1, "", weight1);
    if (weight2.nbDims != 2) fail(3, "", weight2);
    const int64_t channels = last_size(x), hidden = weight1.d[0];
    const std::string of_x = " with C=" + std::to_string(channels) + " (from x)";
    const std::string of_weight1 = " with H=" + std::to_string(hidden) + " (from weight1)";
    if (differ(weight1.d[1], channels)) fail(1, of_x, weight1);
    if (bias1.nbDims != 1 || differ(bias1.d[0], hidden)) fail(2, of_weight1, bias1);
    if (differ(weight2.d[0], channels)) fail(3, of_x, weight2);
    if (differ(weight2.d[1], hidden)) fail(3, of_weight1, weight2);
    for (int32_t i = 4; i < count; ++i) {
      if (dims[i].nbDims != 1 || differ(dims[i].d[0], channels)) fail(i, of_x, dims[i]);
    }
  }

  FeedForwardProblem make_problem(PluginTensorDesc const* inputs) const override {
    FeedForwardProblem problem;
    problem.rows = count_rows(inputs[0].dims);
    problem.channels = last_size(inputs[0].dims);
    problem.hidden = inputs[1].dims.d[0];
    problem.eps = eps_;
    problem.type = convert(inputs[0].type);
    return problem;
  }

  size_t work_bytes(PluginTensorDesc const* largest, int32_t count) const override {
    FeedForwardProblem problem = read_problem(largest, count);
    problem.rows = std::min(problem.rows, kSplitMostRows);  // an engine may run fewer rows
    return feed_forward_work(problem);
  }

  cudaError_t launch(FeedForwardProblem const& problem, void const* const* inputs,
                     void* const* outputs, void* work, cudaStream_t stream) const override {
    const FeedForwardArguments arguments{inputs[0], inputs[1], inputs[2],  inputs[3], inputs[4],
                                         inputs[5], inputs[6], outputs[0], work};
    return feed_forward(problem, arguments, stream);
  }

  std::string describe(FeedForwardProblem const& problem) const override {
    return "M=" + std::to_string(problem.rows) + " C=" + std::to_string(problem.channels) +
           " H=" + std::to_string(problem.hidden) + " " + msda::name(problem.type);
  }

  std::vector<PluginField> fields() const override { return {{kEps, &eps_, kFloat32, 1}}; }

  float eps_;
};

}  // namespace

Creator& feed_forward_creator() {
  static Creator creator(kFeedForward, {real_field(kEps)}, "eps",
                         [](FieldValues const& fields) -> Plugin* {
                           return new FeedForwardPlugin(fields.real(kEps));
                         });
  return creator;
}

}  // namespace msda::trt
