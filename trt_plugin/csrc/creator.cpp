#include "creator.h"

#include <algorithm>
#include <stdexcept>
#include <utility>

#include "report.h"

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

Field real_field(char const* name, Presence presence) {
  return {{name, nullptr, kFloat32, 1}, read_real, presence};
}

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

}  // namespace msda::trt
