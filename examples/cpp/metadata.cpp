#include "metadata.h"

#include <array>
#include <nlohmann/json.hpp>

#include "files.h"

namespace codetr {
namespace {

using Json = nlohmann::json;

Nms read_nms(Json const& object) {
  Nms nms;
  nms.method = object.value("method", nms.method);
  nms.gaussian = object.value("decay", "linear") == "gaussian";
  nms.iou_threshold = object.value("iou_threshold", nms.iou_threshold);
  nms.sigma = object.value("sigma", nms.sigma);
  nms.min_score = object.value("min_score", nms.min_score);
  Json const& most = object.value("max_per_img", Json());
  if (!most.is_null()) nms.max_per_img = most.get<size_t>();
  return nms;
}

InputSizes read_sizes(Json const& object) {
  Json const& resize = object.at("resize");
  const auto fixed = [](int size) { return SizeRange{size, size}; };
  InputSizes sizes{fixed(object.at("batch")), fixed(resize.at("height")), fixed(resize.at("width")),
                   std::nullopt};
  if (resize.contains("scale")) sizes.scale = resize["scale"].get<std::pair<int, int>>();
  // A network of fixed sizes has no profile of its input [N, 3, H, W].
  const Json profiles = object.value("profiles", Json::object());
  if (!profiles.contains("images")) return sizes;
  Json const &min = profiles["images"].at("min"), &max = profiles["images"].at("max");
  const auto range = [&](size_t axis) { return SizeRange{min.at(axis), max.at(axis)}; };
  return {range(0), range(2), range(3), sizes.scale};
}

Metadata read(Json const& object) {
  if (object.at("format") != 1) {
    throw std::runtime_error(concat("format: expected 1, got ", object["format"].dump()));
  }
  Metadata result;
  const auto text = [&](char const* field) { return object.at(field).get<std::string>(); };
  result.description = concat(text("model"), ", TensorRT ", text("tensorrt_version"), ", ",
                              text("gpu"), ", ", text("precision"));
  for (char const* field : {"inputs", "outputs"}) {
    for (Json const& tensor : object.at(field)) {
      result.tensors[tensor.at("name")] = tensor.at("shape").get<Shape>();
    }
  }
  result.class_names = object.at("class_names").get<std::vector<std::string>>();
  result.normalisation = {object.at("mean").get<std::array<float, 3>>(),
                          object.at("std").get<std::array<float, 3>>()};
  result.sizes = read_sizes(object);
  result.nms_in_graph = object.value("nms_in_graph", false);
  result.nms = read_nms(object.at("nms"));
  return result;
}

}  // namespace

std::string format_shape(Shape const& shape) {
  std::string text;
  for (int64_t size : shape) {
    text += concat(text.empty() ? "" : ", ", size < 0 ? "?" : std::to_string(size));
  }
  return concat("[", text, "]");
}

Metadata Metadata::load(std::filesystem::path const& path) {
  try {
    return read(Json::parse(read_file(path)));
  } catch (std::exception const& error) {
    throw UsageError(concat("the metadata ", path.string(), " cannot be used: ", error.what()));
  }
}

}  // namespace codetr
