#include "creator.h"

#include <algorithm>
#include <stdexcept>
#include <utility>

#include "group_norm_plugin.h"
#include "linear_max_plugin.h"
#include "msda_plugin.h"
#include "quantized_layer_norm_plugin.h"
#include "quantized_linear_plugin.h"
#include "report.h"
#include "top_k_plugin.h"
#include "window_plugin.h"

namespace msda::trt {
namespace {

// Reads a number from 0 to `largest`.
int32_t read_up_to(PluginField const& field, int32_t largest, std::string const& expected) {
  const int32_t value = read_number(field, expected);
  if (value <= largest) return value;
  throw std::invalid_argument(std::string(field.name) + ": expected one number, " + expected);
}

float read_real(PluginField const& field) {
  if (field.length == 1 && field.data != nullptr) {
    if (field.type == PluginFieldType::kFLOAT32) return *static_cast<float const*>(field.data);
    if (field.type == PluginFieldType::kFLOAT64) {
      return static_cast<float>(*static_cast<double const*>(field.data));
    }
  }
  throw std::invalid_argument(std::string(field.name) +
                              ": expected one number of type FLOAT32 or FLOAT64");
}

}  // namespace

int32_t read_number(PluginField const& field, std::string const& expected) {
  int64_t value = -1;
  if (field.length == 1 && field.data != nullptr) {
    if (field.type == PluginFieldType::kINT32) {
      value = *static_cast<int32_t const*>(field.data);
    } else if (field.type == PluginFieldType::kINT64) {
      value = *static_cast<int64_t const*>(field.data);
    }
  }
  if (value < 0 || value > INT32_MAX) {
    throw std::invalid_argument(std::string(field.name) +
                                ": expected one number of type INT32 or INT64, " + expected);
  }
  return static_cast<int32_t>(value);
}

Field number_field(char const* name, char const* expected, Presence presence) {
  const auto read = [expected](PluginField const& field) { return read_number(field, expected); };
  return {{name, nullptr, kInt32, 1}, read, presence};
}

Field flag_field(char const* name, Presence presence) {
  const auto read = [](PluginField const& field) { return read_up_to(field, 1, "0 or 1"); };
  return {{name, nullptr, kInt32, 1}, read, presence};
}

Field real_field(char const* name) { return {{name, nullptr, kFloat32, 1}, read_real}; }

Field activation_field() {
  const auto read = [](PluginField const& field) { return read_up_to(field, 2, "0 to 2"); };
  return {{kActivation, nullptr, kInt32, 1}, read};
}

Creator::Creator(char const* name, std::vector<Field> fields, char const* expected, Make make)
    : name_(name), fields_(std::move(fields)), expected_(expected), make_(make) {
  for (Field const& field : fields_) {
    if (field.presence != Presence::kSerialised) listed_.push_back(field.listed);
  }
  collection_ = {static_cast<int32_t>(listed_.size()), listed_.data()};
}

nvinfer1::IPluginV3* Creator::createPlugin(char const* /*layer_name*/,
                                           nvinfer1::PluginFieldCollection const* fields,
                                           nvinfer1::TensorRTPhase /*phase*/) noexcept {
  nvinfer1::IPluginV3* plugin = nullptr;
  guarded(name_, [&] {
    plugin = make_(read(fields == nullptr ? nvinfer1::PluginFieldCollection{} : *fields));
  });
  return plugin;
}

FieldValues Creator::read(nvinfer1::PluginFieldCollection const& given) const {
  FieldValues values;
  for (int32_t i = 0; i < given.nbFields; ++i) {
    char const* const given_name = given.fields[i].name;
    const std::string name = given_name == nullptr ? "" : given_name;
    const auto known = std::find_if(fields_.begin(), fields_.end(),
                                    [&](Field const& field) { return field.listed.name == name; });
    if (known == fields_.end()) {
      throw std::invalid_argument("unknown field \"" + name + "\", expected " + expected_);
    }
    values.set(known->listed.name, known->read(given.fields[i]));
  }
  for (Field const& field : fields_) {
    if (field.presence != Presence::kRequired || values.has(field.listed.name)) continue;
    throw std::invalid_argument(std::string(field.listed.name) + ": expected a number, got none");
  }
  return values;
}

namespace {

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
      {points_field(), flag_field(kPacked, Presence::kOptional)},
      "points_per_level, packed or none", [](FieldValues const& fields) -> Plugin* {
        const bool packed = fields.flag(kPacked);
        return new MsdaPlugin(packed ? Operator::kPackedAttention : Operator::kFusedAttention,
                              fields.numbers(kPointsPerLevel));
      });
  return creator;
}

Creator& window_attention_creator() {
  static Creator creator(kWindowAttention,
                         {number_field(kWindowSize, "0 or more"), number_field(kShift, "0 or more"),
                          number_field(kNumInputs, "0 or more", Presence::kSerialised)},
                         "window_size and shift", [](FieldValues const& fields) -> Plugin* {
                           return new WindowPlugin(fields.number(kWindowSize),
                                                   fields.number(kShift),
                                                   fields.number(kNumInputs));
                         });
  return creator;
}

Creator& group_norm_creator() {
  static Creator creator(kGroupNorm, {number_field(kNumGroups, "1 or more"), real_field(kEps)},
                         "num_groups and eps", [](FieldValues const& fields) -> Plugin* {
                           return new GroupNormPlugin(fields.number(kNumGroups), fields.real(kEps));
                         });
  return creator;
}

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

Creator& quantized_layer_norm_creator() {
  static Creator creator(
      kQuantizedLayerNorm,
      {real_field(kEps), number_field(kOutputType, "3 or 17"), real_field(kScale)},
      "eps, output_type and scale", [](FieldValues const& fields) -> Plugin* {
        return new QuantizedLayerNormPlugin(fields.real(kEps), fields.number(kOutputType),
                                            fields.real(kScale));
      });
  return creator;
}

Creator& linear_max_creator() {
  static Creator creator(kLinearMax, {}, "none", [](FieldValues const& /*fields*/) -> Plugin* {
    return new LinearMaxPlugin();
  });
  return creator;
}

Creator& top_k_creator() {
  static Creator creator(kTopKIndices, {number_field(kTopKCount, "0 or more")}, kTopKCount,
                         [](FieldValues const& fields) -> Plugin* {
                           return new TopKPlugin(fields.number(kTopKCount));
                         });
  return creator;
}

}  // namespace msda::trt
