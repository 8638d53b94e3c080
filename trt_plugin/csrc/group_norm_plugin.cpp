#include "group_norm_plugin.h"

#include <stdexcept>
#include <string>

#include "msda/launchers.h"
#include "tensors.h"

namespace msda::trt {
namespace {

using nvinfer1::Dims;

constexpr int32_t kCount = 3;
constexpr char const* kInputs[kCount] = {"x", "weight", "bias"};
constexpr char const* kShapes[kCount] = {"[N, H, W, C]", "[C]", "[C]"};

std::string describe(GroupNormProblem const& problem) {
  return "N=" + std::to_string(problem.batch_size) + " H=" + std::to_string(problem.height) +
         " W=" + std::to_string(problem.width) + " C=" + std::to_string(problem.channels) +
         " num_groups=" + std::to_string(problem.num_groups) + " " + msda::name(problem.type);
}

void check_count(int32_t count) {
  if (count == kCount) return;
  throw std::invalid_argument("expected 3 inputs (x, weight, bias), got " + std::to_string(count));
}

[[noreturn]] void fail(int32_t index, std::string const& because, Dims const& dims) {
  fail_shape(kInputs[index], kShapes[index], because, dims);
}

}  // namespace

GroupNormPlugin::GroupNormPlugin(int32_t num_groups, float eps)
    : Plugin(kGroupNorm, "num_groups=" + std::to_string(num_groups) + " eps=" + number_text(eps)),
      num_groups_(num_groups),
      eps_(eps) {
  GroupNormProblem problem;
  problem.num_groups = num_groups;
  problem.eps = eps;
  check_message(check(problem));
}

bool GroupNormPlugin::accepts_count(int32_t num_inputs) const { return num_inputs == kCount; }

void GroupNormPlugin::check_types(nvinfer1::DataType const* types, int32_t count) const {
  check_count(count);
  check_one_type(kInputs, types, count);
}

void GroupNormPlugin::check_sizes(Dims const* dims, int32_t count) const {
  check_count(count);
  if (dims[0].nbDims != 4) fail(0, "", dims[0]);
  const int64_t channels = dims[0].d[3];
  if (channels >= 0 && channels % num_groups_ != 0) {
    fail(0, " with C a multiple of num_groups=" + std::to_string(num_groups_), dims[0]);
  }
  for (int32_t i = 1; i < count; ++i) {
    if (dims[i].nbDims != 1) fail(i, "", dims[i]);
    if (channels >= 0 && dims[i].d[0] >= 0 && dims[i].d[0] != channels) {
      fail(i, " with C=" + std::to_string(channels) + " (from x)", dims[i]);
    }
  }
}

void GroupNormPlugin::check_problem(nvinfer1::PluginTensorDesc const* inputs, int32_t count) const {
  read_problem(inputs, count);
}

GroupNormProblem GroupNormPlugin::read_problem(nvinfer1::PluginTensorDesc const* inputs,
                                               int32_t count) const {
  check_inputs(inputs, count);
  Dims const& x = inputs[0].dims;
  GroupNormProblem problem;
  problem.batch_size = x.d[0];
  problem.height = x.d[1];
  problem.width = x.d[2];
  problem.channels = x.d[3];
  problem.num_groups = num_groups_;
  problem.eps = eps_;
  problem.type = convert(inputs[0].type);
  check_message(check(problem));
  return problem;
}

void GroupNormPlugin::set_output_shape(nvinfer1::DimsExprs const* inputs,
                                       nvinfer1::DimsExprs& output,
                                       nvinfer1::IExprBuilder& /*expressions*/) const {
  output = inputs[0];
}

size_t GroupNormPlugin::work_bytes(nvinfer1::PluginTensorDesc const* largest, int32_t count) const {
  return group_norm_work(read_problem(largest, count));
}

void GroupNormPlugin::launch(nvinfer1::PluginTensorDesc const* descriptions, int32_t /*count*/,
                             void const* const* inputs, void* output, void* work,
                             cudaStream_t stream) const {
  const GroupNormProblem problem = read_problem(descriptions, kCount);
  const GroupNormArguments arguments{inputs[0], inputs[1], inputs[2], output, work};
  check_launch(group_norm(problem, arguments, stream), describe(problem));
}

std::vector<nvinfer1::PluginField> GroupNormPlugin::fields() const {
  return {{kNumGroups, &num_groups_, nvinfer1::PluginFieldType::kINT32, 1},
          {kEps, &eps_, nvinfer1::PluginFieldType::kFLOAT32, 1}};
}

}  // namespace msda::trt
