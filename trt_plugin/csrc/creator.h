// Creates plugins from their fields, for a network (build) and from an engine (runtime).
#pragma once

#include <NvInferRuntime.h>

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "msda/linear_params.h"
#include "plugin.h"

namespace msda::trt {

inline constexpr auto kInt32 = PluginFieldType::kINT32;
inline constexpr auto kFloat32 = PluginFieldType::kFLOAT32;

// Fields of several plugins.
inline constexpr char kActivation[] = "activation";
inline constexpr char kAddResidual[] = "add_residual";
inline constexpr char kMultiplyMask[] = "multiply_mask";
inline constexpr char kEps[] = "eps";
inline constexpr char kNumGroups[] = "num_groups";
inline constexpr char kNextScale[] = "next_scale";
inline constexpr char kOutputType[] = "output_type";

using FieldValue = std::variant<int32_t, float, std::vector<int32_t>>;

// Networks give required and optional fields. Engines keep serialised fields too.
enum class Presence { kRequired, kOptional, kSerialised };

// A field that a plugin may have. `read` throws std::invalid_argument with a message that names the
// field.
struct Field {
  PluginField listed;  // name, type and length, as getFieldNames() lists them
  std::function<FieldValue(PluginField const&)> read;
  Presence presence = Presence::kRequired;
};

// A field of one integer, 0 or more. `expected`, a literal, tells its values in messages.
Field number_field(char const* name, char const* expected, Presence presence = Presence::kRequired);
Field flag_field(char const* name, Presence presence = Presence::kRequired);
Field real_field(char const* name, Presence presence = Presence::kRequired);
Field activation_field();

// Reads a field of one integer, 0 or more. Throws std::invalid_argument for other values.
int32_t read_number(PluginField const& field, std::string const& expected);

// The values of a plugin's fields. The value of an absent field is 0, false or empty.
class FieldValues {
 public:
  void set(char const* name, FieldValue value) { values_[name] = std::move(value); }
  bool has(char const* name) const { return values_.count(name) > 0; }

  int32_t number(char const* name) const { return get<int32_t>(name); }
  bool flag(char const* name) const { return number(name) == 1; }
  float real(char const* name) const { return get<float>(name); }
  std::vector<int32_t> numbers(char const* name) const { return get<std::vector<int32_t>>(name); }
  Activation activation() const { return static_cast<Activation>(number(kActivation)); }

 private:
  template <class Value>
  Value get(char const* name) const {
    const auto found = values_.find(name);
    return found == values_.end() ? Value{} : std::get<Value>(found->second);
  }

  std::map<std::string, FieldValue> values_;
};

// Creates the plugins of an operator.
class Creator final : public nvinfer1::IPluginCreatorV3One {
 public:
  using Make = Plugin* (*)(FieldValues const& fields);

  // `name` and `expected` are literals. Messages list the fields as `expected`.
  Creator(char const* name, std::vector<Field> fields, char const* expected, Make make);
  Creator(Creator const&) = delete;

  nvinfer1::IPluginV3* createPlugin(char const* layer_name,
                                    nvinfer1::PluginFieldCollection const* fields,
                                    nvinfer1::TensorRTPhase phase) noexcept override;
  nvinfer1::PluginFieldCollection const* getFieldNames() noexcept override { return &collection_; }
  char const* getPluginName() const noexcept override { return name_; }
  char const* getPluginVersion() const noexcept override { return kVersion; }
  char const* getPluginNamespace() const noexcept override { return kNamespace; }

 private:
  // Throws std::invalid_argument for wrong, unknown and missing fields.
  FieldValues read(nvinfer1::PluginFieldCollection const& given) const;

  char const* name_;
  std::vector<Field> fields_;
  char const* expected_;
  Make make_;
  std::vector<PluginField> listed_;
  nvinfer1::PluginFieldCollection collection_;
};

// The creators. The file of each plugin defines its own.
Creator& attention_creator();
Creator& fused_attention_creator();
Creator& window_attention_creator();
Creator& group_norm_creator();
Creator& group_norm_levels_creator();
Creator& linear_creator();
Creator& quantized_linear_creator();
Creator& quantized_layer_norm_creator();
Creator& feed_forward_creator();
Creator& quantized_feed_forward_creator();
Creator& linear_max_creator();
Creator& linear_of_sum_creator();
Creator& top_k_creator();

}  // namespace msda::trt
