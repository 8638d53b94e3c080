// Asks a plugin of the library about one call, without a GPU and without TensorRT's builder:
//   plugin_probe LIBRARY OPERATOR FIELDS TENSOR...
// FIELDS are "-" or lists of integers such as "packed=1;points_per_level=3,6,1", or numbers with a
// point such as "eps=0.5"; a TENSOR is "float16:2,7,4". The plugin is made from its fields,
// serialised, made again from that, cloned and attached to a context, so that what answers has come
// all this way. Prints "types N", "shapes N" (the results of getOutputDataTypes and onShapeChange),
// "bounds N" (that of configurePlugin), "formats N" (how many of the tensors, outputs among them,
// have a supported format), the timing cache id, the number of inputs where an engine would
// keep it, and the bytes of work memory where there are some.
#include <NvInferRuntime.h>
#include <dlfcn.h>

#include <cstdio>
#include <map>
#include <sstream>
#include <stdexcept>
#include <string>
#include <vector>

using namespace nvinfer1;

namespace {

std::vector<int64_t> numbers(std::string const& text) {
  std::vector<int64_t> result;
  std::istringstream stream(text);
  for (std::string item; std::getline(stream, item, ',');) result.push_back(std::stoll(item));
  return result;
}

PluginTensorDesc tensor(std::string const& text) {
  static const std::map<std::string, DataType> kTypes = {
      {"float32", DataType::kFLOAT}, {"float16", DataType::kHALF}, {"bfloat16", DataType::kBF16},
      {"int32", DataType::kINT32},   {"int64", DataType::kINT64},  {"int8", DataType::kINT8},
      {"float8", DataType::kFP8}};
  const size_t colon = text.find(':');
  PluginTensorDesc result{};
  result.type = kTypes.at(text.substr(0, colon));
  result.format = TensorFormat::kLINEAR;
  for (int64_t size : numbers(text.substr(colon + 1))) result.dims.d[result.dims.nbDims++] = size;
  return result;
}

template <class Interface>
Interface* capability(IPluginV3* plugin, PluginCapabilityType type) {
  return static_cast<Interface*>(plugin->getCapabilityInterface(type));
}

IPluginV3OneRuntime* runtime(IPluginV3* plugin) {
  return capability<IPluginV3OneRuntime>(plugin, PluginCapabilityType::kRUNTIME);
}

}  // namespace

int main(int count, char** arguments) {
  void* library = dlopen(arguments[1], RTLD_NOW);
  if (library == nullptr) throw std::runtime_error(dlerror());
  using GetCreators = IPluginCreatorInterface* const* (*)(int32_t&);
  int32_t num_creators = 0;
  auto* const* creators =
      reinterpret_cast<GetCreators>(dlsym(library, "getCreators"))(num_creators);
  IPluginCreatorV3One* creator = nullptr;
  for (int32_t i = 0; i < num_creators; ++i) {
    auto* candidate = static_cast<IPluginCreatorV3One*>(creators[i]);
    if (candidate->getPluginName() == std::string(arguments[2])) creator = candidate;
  }

  const std::string listed = arguments[3] == std::string("-") ? "" : arguments[3];
  std::map<std::string, std::vector<int32_t>> values;
  std::map<std::string, float> reals;
  std::istringstream stream(listed);
  for (std::string field; std::getline(stream, field, ';');) {
    const size_t equal = field.find('=');
    if (field.find('.') != std::string::npos) {
      reals[field.substr(0, equal)] = std::stof(field.substr(equal + 1));
      continue;
    }
    for (int64_t number : numbers(field.substr(equal + 1))) {
      values[field.substr(0, equal)].push_back(static_cast<int32_t>(number));
    }
  }
  std::vector<PluginField> all;
  for (auto const& [name, data] : values) {
    all.emplace_back(name.c_str(), data.data(), PluginFieldType::kINT32,
                     static_cast<int32_t>(data.size()));
  }
  for (auto const& [name, real] : reals) {
    all.emplace_back(name.c_str(), &real, PluginFieldType::kFLOAT32, 1);
  }
  PluginFieldCollection fields{static_cast<int32_t>(all.size()), all.data()};
  IPluginV3* built = creator->createPlugin("probe", &fields, TensorRTPhase::kBUILD);
  IPluginV3* loaded = creator->createPlugin("probe", runtime(built)->getFieldsToSerialize(),
                                            TensorRTPhase::kRUNTIME);
  delete built;
  IPluginV3* copy = loaded->clone();
  delete loaded;
  IPluginV3* plugin = runtime(copy)->attachToContext(nullptr);
  delete copy;

  std::vector<PluginTensorDesc> inputs;
  std::vector<DataType> types;
  for (int i = 4; i < count; ++i) {
    inputs.push_back(tensor(arguments[i]));
    types.push_back(inputs.back().type);
  }
  const auto num_inputs = static_cast<int32_t>(inputs.size());
  auto* build = capability<IPluginV3OneBuild>(plugin, PluginCapabilityType::kBUILD);
  const int32_t num_outputs = build->getNbOutputs();
  std::vector<DataType> output_types(num_outputs);
  const int32_t types_status =
      build->getOutputDataTypes(output_types.data(), num_outputs, types.data(), num_inputs);
  std::vector<PluginTensorDesc> outputs(num_outputs);
  const int32_t shapes_status =
      runtime(plugin)->onShapeChange(inputs.data(), num_inputs, outputs.data(), num_outputs);
  std::vector<DynamicPluginTensorDesc> bounds;
  for (PluginTensorDesc const& input : inputs) {
    bounds.push_back({input, input.dims, input.dims, input.dims});
    for (int32_t axis = 0; axis < input.dims.nbDims; ++axis) bounds.back().desc.dims.d[axis] = -1;
  }
  const int32_t bounds_status =
      build->configurePlugin(bounds.data(), num_inputs, nullptr, num_outputs);
  std::vector<DynamicPluginTensorDesc> tensors = bounds;
  for (int32_t i = 0; i < num_outputs; ++i) {
    outputs[i].type = output_types[i];
    outputs[i].format = TensorFormat::kLINEAR;
    tensors.push_back({outputs[i], outputs[i].dims, outputs[i].dims, outputs[i].dims});
  }
  int32_t formats = 0;
  for (int32_t i = 0; i < num_inputs + num_outputs; ++i) {
    formats += build->supportsFormatCombination(i, tensors.data(), num_inputs, num_outputs);
  }
  std::printf("types %d\nshapes %d\nbounds %d\nformats %d\n%s\n", types_status, shapes_status,
              bounds_status, formats, build->getTimingCacheID());
  PluginFieldCollection const* kept = runtime(plugin)->getFieldsToSerialize();
  for (int32_t i = 0; i < kept->nbFields; ++i) {
    if (kept->fields[i].name != std::string("num_inputs")) continue;
    std::printf("num_inputs %d\n", *static_cast<int32_t const*>(kept->fields[i].data));
  }
  const size_t work = shapes_status == 0
                          ? build->getWorkspaceSize(bounds.data(), num_inputs, nullptr, num_outputs)
                          : 0;
  if (work > 0) std::printf("work %zu\n", work);
  delete plugin;
  return 0;
}
