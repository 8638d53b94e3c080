#include "msda_plugin.h"

#include <string>
#include <utility>

#include "msda/launchers.h"

namespace msda::trt {
namespace {

std::string describe(Operator op, std::vector<int32_t> const& points_per_level) {
  std::string text = op == Operator::kPackedAttention ? "packed, " : "";
  if (points_per_level.empty()) return text + "equal points per level";
  text += "points_per_level=[";
  for (size_t i = 0; i < points_per_level.size(); ++i) {
    text += (i ? "," : "") + std::to_string(points_per_level[i]);
  }
  return text + "]";
}

std::string describe(Problem const& problem) {
  return "N=" + std::to_string(problem.batch_size) + " S=" + std::to_string(problem.num_cells) +
         " M=" + std::to_string(problem.num_heads) + " D=" + std::to_string(problem.head_dim) +
         " L=" + std::to_string(problem.num_levels) + " Q=" + std::to_string(problem.num_queries) +
         " K=" + std::to_string(problem.total_points) + " " + msda::name(problem.value_type);
}

}  // namespace

MsdaPlugin::MsdaPlugin(Operator op, std::vector<int32_t> points_per_level)
    : Plugin(operator_name(op), describe(op, points_per_level)),
      op_(op),
      points_per_level_(std::move(points_per_level)) {}

bool MsdaPlugin::accepts_count(int32_t num_inputs) const {
  return num_inputs == msda::trt::num_inputs(op_);
}

bool MsdaPlugin::accepts_type(int32_t index, nvinfer1::DataType const* types) const {
  return msda::trt::accepts_type(op_, index, types);
}

void MsdaPlugin::check_types(nvinfer1::DataType const* types, int32_t count) const {
  msda::trt::check_types(op_, types, count);
}

void MsdaPlugin::check_sizes(nvinfer1::Dims const* dims, int32_t count) const {
  msda::trt::check_sizes(op_, points_per_level_, dims, count);
}

void MsdaPlugin::check_problem(nvinfer1::PluginTensorDesc const* inputs, int32_t count) const {
  read_problem(op_, points_per_level_, inputs, count);
}

void MsdaPlugin::set_output_shape(nvinfer1::DimsExprs const* inputs, nvinfer1::DimsExprs& output,
                                  nvinfer1::IExprBuilder& expressions) const {
  nvinfer1::DimsExprs const& value = inputs[0];
  output.nbDims = 3;  // [N, Q, M * D]
  output.d[0] = value.d[0];
  output.d[1] = inputs[locations_index(op_)].d[1];
  output.d[2] =
      expressions.operation(nvinfer1::DimensionOperation::kPROD, *value.d[2], *value.d[3]);
}

void MsdaPlugin::launch(nvinfer1::PluginTensorDesc const* descriptions, int32_t /*count*/,
                        void const* const* inputs, void* output, void* /*work*/,
                        cudaStream_t stream) const {
  const Problem problem = read_problem(op_, points_per_level_, descriptions, num_inputs(op_));
  ForwardArguments arguments;
  arguments.value = inputs[0];
  arguments.spatial_shapes = inputs[1];
  arguments.level_start_index = inputs[2];
  if (op_ != Operator::kAttention) arguments.reference_points = inputs[3];
  arguments.sampling_locations = inputs[locations_index(op_)];
  arguments.attention_weights =
      op_ == Operator::kPackedAttention
          ? static_cast<char const*>(arguments.sampling_locations) +
                2 * problem.points_of_query() * size_of(problem.location_type)
          : inputs[locations_index(op_) + 1];
  arguments.output = output;
  check_launch(forward(problem, arguments, stream), describe(problem));
}

std::vector<nvinfer1::PluginField> MsdaPlugin::fields() const {
  constexpr auto kInt32 = nvinfer1::PluginFieldType::kINT32;
  static constexpr int32_t kYes = 1;
  std::vector<nvinfer1::PluginField> result;
  if (!points_per_level_.empty()) {
    const auto levels = static_cast<int32_t>(points_per_level_.size());
    result.emplace_back(kPointsPerLevel, points_per_level_.data(), kInt32, levels);
  }
  if (op_ == Operator::kPackedAttention) result.emplace_back(kPacked, &kYes, kInt32, 1);
  return result;
}

}  // namespace msda::trt
