#include "creator.h"

#include <algorithm>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "plugin.h"
#include "report.h"

namespace msda::trt {
namespace {

template <class Integer>
std::vector<int32_t> read_integers(nvinfer1::PluginField const& field) {
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

std::vector<int32_t> read_points_per_level(nvinfer1::PluginField const& field) {
  if (field.length < 0 || (field.length > 0 && field.data == nullptr)) {
    throw std::invalid_argument("points_per_level: expected a list of integers, got none");
  }
  if (field.length == 0) return {};
  if (field.length > kMaxLevels) {
    throw std::invalid_argument("points_per_level: expected at most " + std::to_string(kMaxLevels) +
                                " levels, got " + std::to_string(field.length));
  }
  switch (field.type) {
    case nvinfer1::PluginFieldType::kINT32:
      return read_integers<int32_t>(field);
    case nvinfer1::PluginFieldType::kINT64:
      return read_integers<int64_t>(field);
    default:
      throw std::invalid_argument(
          "points_per_level: expected a field of type INT32 or INT64, got PluginFieldType " +
          std::to_string(static_cast<int32_t>(field.type)));
  }
}

bool read_packed(nvinfer1::PluginField const& field) {
  int64_t value = -1;
  if (field.length == 1 && field.data != nullptr) {
    if (field.type == nvinfer1::PluginFieldType::kINT32) {
      value = *static_cast<int32_t const*>(field.data);
    } else if (field.type == nvinfer1::PluginFieldType::kINT64) {
      value = *static_cast<int64_t const*>(field.data);
    }
  }
  if (value != 0 && value != 1) {
    throw std::invalid_argument("packed: expected one number of type INT32 or INT64, 0 or 1");
  }
  return value == 1;
}

Plugin* make_plugin(Operator op, nvinfer1::PluginFieldCollection const* fields) {
  std::vector<int32_t> points_per_level;
  for (int32_t i = 0; fields != nullptr && i < fields->nbFields; ++i) {
    nvinfer1::PluginField const& field = fields->fields[i];
    const std::string name = field.name ? field.name : "";
    if (name == kPointsPerLevel) {
      points_per_level = read_points_per_level(field);
    } else if (name == kPacked && op != Operator::kAttention) {
      op = read_packed(field) ? Operator::kPackedAttention : Operator::kFusedAttention;
    } else {
      throw std::invalid_argument("unknown field \"" + name + "\", expected points_per_level" +
                                  (op == Operator::kAttention ? " or none" : ", packed or none"));
    }
  }
  return new Plugin(op, std::move(points_per_level));
}

}  // namespace

Creator::Creator(Operator op)
    : op_(op),
      fields_of_plugin_{{kPointsPerLevel, nullptr, nvinfer1::PluginFieldType::kINT32, 0},
                        {kPacked, nullptr, nvinfer1::PluginFieldType::kINT32, 1}},
      fields_{op == Operator::kAttention ? 1 : 2, fields_of_plugin_} {}

nvinfer1::IPluginV3* Creator::createPlugin(char const* /*layer_name*/,
                                           nvinfer1::PluginFieldCollection const* fields,
                                           nvinfer1::TensorRTPhase /*phase*/) noexcept {
  nvinfer1::IPluginV3* plugin = nullptr;
  guarded(getPluginName(), [&] { plugin = make_plugin(op_, fields); });
  return plugin;
}

char const* Creator::getPluginName() const noexcept { return operator_name(op_); }

char const* Creator::getPluginVersion() const noexcept { return kVersion; }

char const* Creator::getPluginNamespace() const noexcept { return kNamespace; }

}  // namespace msda::trt
