// The TensorRT plugin of both MSDA operators.
#include <algorithm>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "creator.h"
#include "msda/launchers.h"
#include "shapes.h"

namespace msda::trt {
namespace {

constexpr char kPointsPerLevel[] = "points_per_level";
constexpr char kPacked[] = "packed";
constexpr char kValueScale[] = "value_scale";

std::string fields_text(Operator op, std::vector<int32_t> const& points_per_level,
                        float value_scale) {
  std::string text = op == Operator::kPackedAttention ? "packed, " : "";
  if (value_scale > 0) text += "value_scale=" + number_text(value_scale) + ", ";
  if (points_per_level.empty()) return text + "equal points per level";
  text += "points_per_level=[";
  for (size_t i = 0; i < points_per_level.size(); ++i) {
    text += (i ? "," : "") + std::to_string(points_per_level[i]);
  }
  return text + "]";
}

class MsdaPlugin final : public KernelPlugin<Problem> {
 public:
  // An empty points_per_level means that every level has the same number of points. With a
  // value_scale above 0, the value is int8.
  MsdaPlugin(Operator op, std::vector<int32_t> points_per_level, float value_scale = 0)
      : KernelPlugin(operator_name(op), fields_text(op, points_per_level, value_scale), inputs(op)),
        op_(op),
        points_per_level_(std::move(points_per_level)),
        value_scale_(value_scale) {}

 private:
  Plugin* copy() const override { return new MsdaPlugin(*this); }

  bool quantized() const { return value_scale_ > 0; }

  bool is_reference_points(int32_t index) const {
    return op_ != Operator::kAttention && index == 3;
  }

  bool accepts_type(int32_t index, DataType const* types) const override {
    const DataType type = types[index];
    const bool is_float = type == DataType::kFLOAT;
    if (index == 0) return quantized() ? type == DataType::kINT8 : is_floating(type);
    if (index == 1) return type == DataType::kINT32 || type == DataType::kINT64;
    if (index == 2) return type == types[1];
    if (is_reference_points(index)) return is_float;
    if (!quantized()) return is_float || type == types[0];
    const int32_t first = locations_index(op_);
    return index == first ? is_floating(type) && !is_float : type == types[first];
  }

  std::string expected_type(int32_t index, DataType const* types) const override {
    if (index == 0) return quantized() ? "int8 (value_scale)" : "float32, float16 or bfloat16";
    if (index == 1) return "int32 or int64";
    if (index == 2) return type_name(types[1]) + " (as spatial_shapes)";
    if (is_reference_points(index) || types[0] == DataType::kFLOAT) return "float32";
    if (quantized()) {
      const int32_t first = locations_index(op_);
      return index == first ? "float16 or bfloat16 (value_scale)"
                            : type_name(types[first]) + " (as sampling_offsets)";
    }
    return type_name(types[0]) + " (the value's) or float32";
  }

  DataType output_type(int32_t /*index*/, DataType const* types) const override {
    return types[quantized() ? locations_index(op_) : 0];
  }

  void check_sizes(Dims const* dims, int32_t /*count*/) const override {
    msda::trt::check_sizes(op_, points_per_level_, dims);
  }

  void set_output_shape(DimsExprs const* inputs, DimsExprs& output,
                        IExprBuilder& expressions) const override {
    DimsExprs const& value = inputs[0];
    output.nbDims = 3;  // [N, Q, M * D]
    output.d[0] = value.d[0];
    output.d[1] = inputs[locations_index(op_)].d[1];
    output.d[2] =
        expressions.operation(nvinfer1::DimensionOperation::kPROD, *value.d[2], *value.d[3]);
  }

  Problem make_problem(PluginTensorDesc const* inputs) const override {
    std::vector<Dims> dims(num_inputs_);
    for (int32_t i = 0; i < num_inputs_; ++i) dims[i] = inputs[i].dims;
    const Sizes sizes = msda::trt::check_sizes(op_, points_per_level_, dims.data());
    if (sizes.num_levels > kMaxLevels) {
      throw std::invalid_argument("spatial_shapes: expected at most " + std::to_string(kMaxLevels) +
                                  " levels, got " + std::to_string(sizes.num_levels));
    }
    Problem problem;
    problem.batch_size = sizes.batch_size;
    problem.num_cells = sizes.num_cells;
    problem.num_heads = sizes.num_heads;
    problem.head_dim = sizes.head_dim;
    problem.num_levels = sizes.num_levels;
    problem.num_queries = sizes.num_queries;
    problem.total_points = sizes.total_points;
    for (int64_t level = 0; level < sizes.num_levels; ++level) {
      problem.points_per_level[level] = points_per_level_.empty()
                                            ? static_cast<int32_t>(sizes.num_points)
                                            : points_per_level_[static_cast<size_t>(level)];
    }
    problem.locations = op_ == Operator::kAttention ? Locations::kGiven
                        : sizes.reference_dim == 2  ? Locations::kReferencePoints
                                                    : Locations::kReferenceBoxes;
    problem.int8_value = quantized();
    problem.value_scale = quantized() ? value_scale_ : 1;
    problem.value_type = convert(inputs[quantized() ? locations_index(op_) : 0].type);
    problem.location_type = convert(inputs[locations_index(op_)].type);
    problem.weight_type = convert(inputs[num_inputs_ - 1].type);
    problem.int64_shapes = inputs[1].type == DataType::kINT64;
    problem.set_dense();
    if (op_ == Operator::kPackedAttention) {
      problem.location_stride = problem.weight_stride = 3 * problem.points_of_query();
    }
    return problem;
  }

  cudaError_t launch(Problem const& problem, void const* const* inputs, void* const* outputs,
                     void* /*work*/, cudaStream_t stream) const override {
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
    arguments.output = outputs[0];
    return forward(problem, arguments, stream);
  }

  std::string describe(Problem const& problem) const override {
    return "N=" + std::to_string(problem.batch_size) + " S=" + std::to_string(problem.num_cells) +
           " M=" + std::to_string(problem.num_heads) + " D=" + std::to_string(problem.head_dim) +
           " L=" + std::to_string(problem.num_levels) +
           " Q=" + std::to_string(problem.num_queries) +
           " K=" + std::to_string(problem.total_points) + " " + msda::name(problem.value_type);
  }

  std::vector<PluginField> fields() const override {
    static constexpr int32_t kYes = 1;
    std::vector<PluginField> result;
    if (!points_per_level_.empty()) {
      const auto levels = static_cast<int32_t>(points_per_level_.size());
      result.emplace_back(kPointsPerLevel, points_per_level_.data(), kInt32, levels);
    }
    if (op_ == Operator::kPackedAttention) result.emplace_back(kPacked, &kYes, kInt32, 1);
    if (quantized()) result.emplace_back(kValueScale, &value_scale_, kFloat32, 1);
    return result;
  }

  Operator op_;
  std::vector<int32_t> points_per_level_;
  float value_scale_;  // 0: the value is not int8
};

template <class Integer>
std::vector<int32_t> read_integers(PluginField const& field) {
  auto const* values = static_cast<Integer const*>(field.data);
  std::vector<int32_t> result;
  for (int32_t i = 0; i < field.length; ++i) {
    if (values[i] < 0 || values[i] > INT32_MAX) {
      throw std::invalid_argument("points_per_level: expected numbers from 0 to 2^31 - 1, got " +
                                  std::to_string(values[i]) + " for level " + std::to_string(i));
    }
    result.push_back(static_cast<int32_t>(values[i]));
  }
  const bool none = std::all_of(result.begin(), result.end(), [](int32_t n) { return n == 0; });
  if (none) throw std::invalid_argument("points_per_level: expected numbers that are not all 0");
  return result;
}

std::vector<int32_t> read_points_per_level(PluginField const& field) {
  if (field.length < 0 || (field.length > 0 && field.data == nullptr)) {
    throw std::invalid_argument("points_per_level: expected a list of integers, got none");
  }
  if (field.length == 0) return {};
  if (field.length > kMaxLevels) {
    throw std::invalid_argument("points_per_level: expected at most " + std::to_string(kMaxLevels) +
                                " levels, got " + std::to_string(field.length));
  }
  switch (field.type) {
    case PluginFieldType::kINT32:
      return read_integers<int32_t>(field);
    case PluginFieldType::kINT64:
      return read_integers<int64_t>(field);
    default:
      throw std::invalid_argument(
          "points_per_level: expected a field of type INT32 or INT64, got PluginFieldType " +
          std::to_string(static_cast<int32_t>(field.type)));
  }
}

Field points_field() {
  return {{kPointsPerLevel, nullptr, kInt32, 0}, read_points_per_level, Presence::kOptional};
}

}  // namespace

Creator& attention_creator() {
  static Creator creator(operator_name(Operator::kAttention), {points_field()},
                         "points_per_level or none", [](FieldValues const& fields) -> Plugin* {
                           return new MsdaPlugin(Operator::kAttention,
                                                 fields.numbers(kPointsPerLevel));
                         });
  return creator;
}

Creator& fused_attention_creator() {
  static Creator creator(
      operator_name(Operator::kFusedAttention),
      {points_field(), flag_field(kPacked, Presence::kOptional),
       real_field(kValueScale, Presence::kOptional)},
      "points_per_level, packed, value_scale or none", [](FieldValues const& fields) -> Plugin* {
        const bool packed = fields.flag(kPacked);
        if (fields.has(kValueScale) && !(fields.real(kValueScale) > 0)) {
          throw std::invalid_argument("value_scale: expected a number above 0, got " +
                                      number_text(fields.real(kValueScale)));
        }
        return new MsdaPlugin(packed ? Operator::kPackedAttention : Operator::kFusedAttention,
                              fields.numbers(kPointsPerLevel), fields.real(kValueScale));
      });
  return creator;
}

}  // namespace msda::trt
