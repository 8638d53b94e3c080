#include "creator.h"

#include <algorithm>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "group_norm_plugin.h"
#include "linear_max_plugin.h"
#include "linear_plugin.h"
#include "msda_plugin.h"
#include "quantized_layer_norm_plugin.h"
#include "quantized_linear_plugin.h"
#include "report.h"
#include "top_k_plugin.h"
#include "window_plugin.h"

namespace msda::trt {
namespace {

constexpr auto kInt32 = nvinfer1::PluginFieldType::kINT32;
constexpr auto kFloat32 = nvinfer1::PluginFieldType::kFLOAT32;

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

int32_t read_number(nvinfer1::PluginField const& field, std::string const& expected) {
  int64_t value = -1;
  if (field.length == 1 && field.data != nullptr) {
    if (field.type == nvinfer1::PluginFieldType::kINT32) {
      value = *static_cast<int32_t const*>(field.data);
    } else if (field.type == nvinfer1::PluginFieldType::kINT64) {
      value = *static_cast<int64_t const*>(field.data);
    }
  }
  if (value < 0 || value > INT32_MAX) {
    throw std::invalid_argument(std::string(field.name) +
                                ": expected one number of type INT32 or INT64, " + expected);
  }
  return static_cast<int32_t>(value);
}

float read_real(nvinfer1::PluginField const& field) {
  if (field.length == 1 && field.data != nullptr) {
    if (field.type == nvinfer1::PluginFieldType::kFLOAT32) {
      return *static_cast<float const*>(field.data);
    }
    if (field.type == nvinfer1::PluginFieldType::kFLOAT64) {
      return static_cast<float>(*static_cast<double const*>(field.data));
    }
  }
  throw std::invalid_argument(std::string(field.name) +
                              ": expected one number of type FLOAT32 or FLOAT64");
}

[[noreturn]] void fail_unknown(std::string const& name, std::string const& expected) {
  throw std::invalid_argument("unknown field \"" + name + "\", expected " + expected);
}

template <typename Number>
Number required(std::optional<Number> const& number, char const* name) {
  if (number) return *number;
  throw std::invalid_argument(std::string(name) + ": expected a number, got none");
}

bool read_switch(nvinfer1::PluginField const& field) {
  const int32_t value = read_number(field, "0 or 1");
  if (value > 1) {
    throw std::invalid_argument(std::string(field.name) + ": expected one number, 0 or 1");
  }
  return value == 1;
}

int32_t read_activation(nvinfer1::PluginField const& field) {
  const int32_t value = read_number(field, "0 to 2");
  if (value > 2) throw std::invalid_argument("activation: expected one number, 0 to 2");
  return value;
}

}  // namespace

Creator::Creator(char const* name, std::vector<nvinfer1::PluginField> fields)
    : name_(name),
      fields_(std::move(fields)),
      collection_{static_cast<int32_t>(fields_.size()), fields_.data()} {}

nvinfer1::IPluginV3* Creator::createPlugin(char const* /*layer_name*/,
                                           nvinfer1::PluginFieldCollection const* fields,
                                           nvinfer1::TensorRTPhase /*phase*/) noexcept {
  nvinfer1::IPluginV3* plugin = nullptr;
  guarded(name_, [&] {
    std::vector<nvinfer1::PluginField> given;
    for (int32_t i = 0; fields != nullptr && i < fields->nbFields; ++i) {
      given.push_back(fields->fields[i]);
      if (given.back().name == nullptr) given.back().name = "";
    }
    plugin = make(given);
  });
  return plugin;
}

char const* Creator::getPluginVersion() const noexcept { return kVersion; }

char const* Creator::getPluginNamespace() const noexcept { return kNamespace; }

MsdaCreator::MsdaCreator(Operator op)
    : Creator(operator_name(op),
              op == Operator::kAttention
                  ? std::vector<nvinfer1::PluginField>{{kPointsPerLevel, nullptr, kInt32, 0}}
                  : std::vector<nvinfer1::PluginField>{{kPointsPerLevel, nullptr, kInt32, 0},
                                                       {kPacked, nullptr, kInt32, 1}}),
      op_(op) {}

nvinfer1::IPluginV3* MsdaCreator::make(std::vector<nvinfer1::PluginField> const& fields) const {
  Operator op = op_;
  std::vector<int32_t> points_per_level;
  for (nvinfer1::PluginField const& field : fields) {
    const std::string name = field.name;
    if (name == kPointsPerLevel) {
      points_per_level = read_points_per_level(field);
    } else if (name == kPacked && op_ != Operator::kAttention) {
      op = read_switch(field) ? Operator::kPackedAttention : Operator::kFusedAttention;
    } else {
      fail_unknown(name, op_ == Operator::kAttention ? "points_per_level or none"
                                                     : "points_per_level, packed or none");
    }
  }
  return new MsdaPlugin(op, std::move(points_per_level));
}

WindowCreator::WindowCreator()
    : Creator(kWindowAttention, {{kWindowSize, nullptr, kInt32, 1}, {kShift, nullptr, kInt32, 1}}) {
}

nvinfer1::IPluginV3* WindowCreator::make(std::vector<nvinfer1::PluginField> const& fields) const {
  std::optional<int32_t> window_size, shift;
  int32_t num_inputs = 0;
  for (nvinfer1::PluginField const& field : fields) {
    const std::string name = field.name;
    if (name == kWindowSize) {
      window_size = read_number(field, "0 or more");
    } else if (name == kShift) {
      shift = read_number(field, "0 or more");
    } else if (name == kNumInputs) {
      num_inputs = read_number(field, "0 or more");
    } else {
      fail_unknown(name, "window_size and shift");
    }
  }
  const int32_t size = required(window_size, kWindowSize);
  return new WindowPlugin(size, required(shift, kShift), num_inputs);
}

GroupNormCreator::GroupNormCreator()
    : Creator(kGroupNorm, {{kNumGroups, nullptr, kInt32, 1}, {kEps, nullptr, kFloat32, 1}}) {}

nvinfer1::IPluginV3* GroupNormCreator::make(
    std::vector<nvinfer1::PluginField> const& fields) const {
  std::optional<int32_t> num_groups;
  std::optional<float> eps;
  for (nvinfer1::PluginField const& field : fields) {
    const std::string name = field.name;
    if (name == kNumGroups) {
      num_groups = read_number(field, "1 or more");
    } else if (name == kEps) {
      eps = read_real(field);
    } else {
      fail_unknown(name, "num_groups and eps");
    }
  }
  const int32_t groups = required(num_groups, kNumGroups);
  return new GroupNormPlugin(groups, required(eps, kEps));
}

LinearCreator::LinearCreator()
    : Creator(kLinear, {{kActivation, nullptr, kInt32, 1},
                        {kAddResidual, nullptr, kInt32, 1},
                        {kMultiplyMask, nullptr, kInt32, 1},
                        {kNormalise, nullptr, kInt32, 1},
                        {kEps, nullptr, kFloat32, 1}}) {}

nvinfer1::IPluginV3* LinearCreator::make(std::vector<nvinfer1::PluginField> const& fields) const {
  std::optional<int32_t> activation, add_residual, multiply_mask, normalise;
  std::optional<float> eps;
  for (nvinfer1::PluginField const& field : fields) {
    const std::string name = field.name;
    if (name == kActivation) {
      activation = read_activation(field);
    } else if (name == kAddResidual) {
      add_residual = read_switch(field);
    } else if (name == kMultiplyMask) {
      multiply_mask = read_switch(field);
    } else if (name == kNormalise) {
      normalise = read_switch(field);
    } else if (name == kEps) {
      eps = read_real(field);
    } else {
      fail_unknown(name, "activation, add_residual, multiply_mask, normalise and eps");
    }
  }
  const auto chosen = static_cast<Activation>(required(activation, kActivation));
  const bool adds = required(add_residual, kAddResidual) == 1;
  const bool masks = required(multiply_mask, kMultiplyMask) == 1;
  const bool normalises = required(normalise, kNormalise) == 1;
  return new LinearPlugin(chosen, adds, masks, normalises, required(eps, kEps));
}

LinearMaxCreator::LinearMaxCreator() : Creator(kLinearMax, {}) {}

nvinfer1::IPluginV3* LinearMaxCreator::make(
    std::vector<nvinfer1::PluginField> const& fields) const {
  if (!fields.empty()) fail_unknown(fields[0].name, "none");
  return new LinearMaxPlugin();
}

TopKCreator::TopKCreator() : Creator(kTopKIndices, {{kTopKCount, nullptr, kInt32, 1}}) {}

nvinfer1::IPluginV3* TopKCreator::make(std::vector<nvinfer1::PluginField> const& fields) const {
  std::optional<int32_t> count;
  for (nvinfer1::PluginField const& field : fields) {
    if (std::string(field.name) != kTopKCount) fail_unknown(field.name, kTopKCount);
    count = read_number(field, "0 or more");
  }
  return new TopKPlugin(required(count, kTopKCount));
}

QuantizedLinearCreator::QuantizedLinearCreator()
    : Creator(kQuantizedLinear, {{kActivation, nullptr, kInt32, 1},
                                 {kAddResidual, nullptr, kInt32, 1},
                                 {kMultiplyMask, nullptr, kInt32, 1},
                                 {kOutputType, nullptr, kInt32, 1},
                                 {kOutputScale, nullptr, kFloat32, 1}}) {}

nvinfer1::IPluginV3* QuantizedLinearCreator::make(
    std::vector<nvinfer1::PluginField> const& fields) const {
  std::optional<int32_t> activation, add_residual, multiply_mask, output_type;
  std::optional<float> output_scale;
  for (nvinfer1::PluginField const& field : fields) {
    const std::string name = field.name;
    if (name == kActivation) {
      activation = read_activation(field);
    } else if (name == kAddResidual) {
      add_residual = read_switch(field);
    } else if (name == kMultiplyMask) {
      multiply_mask = read_switch(field);
    } else if (name == kOutputType) {
      output_type = read_number(field, "3, 10, 16 or 17");
      bool known = false;
      for (const int32_t type : {kOnnxInt8, kOnnxFloat16, kOnnxBFloat16, kOnnxFloat8}) {
        known = known || *output_type == type;
      }
      if (!known) {
        throw std::invalid_argument(
            "output_type: expected 3 (int8), 10 (float16), 16 (bfloat16) or 17 (float8), got " +
            std::to_string(*output_type));
      }
    } else if (name == kOutputScale) {
      output_scale = read_real(field);
    } else {
      fail_unknown(name, "activation, add_residual, multiply_mask, output_type and output_scale");
    }
  }
  const int32_t chosen = required(activation, kActivation);
  const bool adds = required(add_residual, kAddResidual) == 1;
  const bool masks = required(multiply_mask, kMultiplyMask) == 1;
  const int32_t type = required(output_type, kOutputType);
  return new QuantizedLinearPlugin(static_cast<Activation>(chosen), adds, masks, type,
                                   required(output_scale, kOutputScale));
}

QuantizedLayerNormCreator::QuantizedLayerNormCreator()
    : Creator(kQuantizedLayerNorm, {{kEps, nullptr, kFloat32, 1},
                                    {kOutputType, nullptr, kInt32, 1},
                                    {kScale, nullptr, kFloat32, 1}}) {}

nvinfer1::IPluginV3* QuantizedLayerNormCreator::make(
    std::vector<nvinfer1::PluginField> const& fields) const {
  std::optional<float> eps, scale;
  std::optional<int32_t> output_type;
  for (nvinfer1::PluginField const& field : fields) {
    const std::string name = field.name;
    if (name == kEps) {
      eps = read_real(field);
    } else if (name == kOutputType) {
      output_type = read_number(field, "3 or 17");
    } else if (name == kScale) {
      scale = read_real(field);
    } else {
      fail_unknown(name, "eps, output_type and scale");
    }
  }
  const float added = required(eps, kEps);
  const int32_t type = required(output_type, kOutputType);
  return new QuantizedLayerNormPlugin(added, type, required(scale, kScale));
}

}  // namespace msda::trt
