#include "metadata.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "errors.h"
#include "files.h"

namespace codetr {
namespace {

using Json = nlohmann::json;

constexpr int kFormat = 1;

void require(bool fine, char const* field, char const* expected, Json const& got) {
  if (!fine) throw UsageError(concat(field, ": expected ", expected, ", got ", got.dump()));
}

bool is_size(Json const& value) {
  return value.is_number_integer() && value > 0 && value <= INT32_MAX;
}

int size_of(Json const& object, char const* field) {
  Json const& value = object.at(field);
  require(is_size(value), field, "a positive integer", value);
  return value;
}

Normalisation read_normalisation(Json const& object) {
  const Normalisation result{object.at("mean"), object.at("std")};
  const bool positive = *std::min_element(result.std.begin(), result.std.end()) > 0;
  require(positive, "std", "three positive numbers (R, G, B)", object["std"]);
  return result;
}

Nms read_nms(Json const& object) {
  static const std::map<std::string, NmsMethod> kMethods{
      {"soft", NmsMethod::kSoft}, {"hard", NmsMethod::kHard}, {"none", NmsMethod::kNone}};
  Nms nms;
  const auto method = kMethods.find(object.value("method", "soft"));
  require(method != kMethods.end(), "nms", "the method soft, hard or none", object);
  nms.method = method->second;
  const std::string decay = object.value("decay", "linear");
  nms.gaussian = decay == "gaussian";
  require(nms.gaussian || decay == "linear", "nms", "the decay linear or gaussian", object);
  nms.iou_threshold = object.value("iou_threshold", nms.iou_threshold);
  nms.sigma = object.value("sigma", nms.sigma);
  nms.min_score = object.value("min_score", nms.min_score);
  if (!object.value("max_per_img", Json()).is_null()) {
    nms.max_per_img = size_of(object, "max_per_img");
  }
  return nms;
}

// Reads the profile of each input with a size of -1. A file of fixed sizes may lack the field.
std::map<std::string, Profile> read_profiles(Json const& object) {
  std::map<std::string, Profile> result;
  if (!object.contains("profiles")) return result;
  for (auto const& [name, profile] : object["profiles"].items()) {
    result[name] = {profile.at("min"), profile.at("opt"), profile.at("max")};
  }
  return result;
}

InputSizes read_sizes(Json const& object, std::map<std::string, Profile> const& profiles) {
  Json const& resize = object.at("resize");
  require(resize.at("mode") == "fit_pad", "resize", R"({"mode": "fit_pad"})", resize);
  const auto fixed = [](int size) { return SizeRange{size, size, size}; };
  InputSizes sizes{fixed(size_of(object, "batch")), fixed(size_of(resize, "height")),
                   fixed(size_of(resize, "width")), std::nullopt};
  if (resize.contains("scale")) {
    Json const& scale = resize["scale"];
    require(scale.is_array() && scale.size() == 2 && is_size(scale[0]) && is_size(scale[1]) &&
                scale[0] >= scale[1],
            "scale", "[long, short], two positive integers", scale);
    sizes.scale = {scale[0], scale[1]};
  }
  const auto found = profiles.find("images");
  if (found == profiles.end()) return sizes;
  auto const& [min, opt, max] = found->second;
  bool ordered = min.size() == 4 && opt.size() == 4 && max.size() == 4;  // [N, 3, H, W]
  size_t axis = 0;
  for (SizeRange* range : {&sizes.batch, &sizes.height, &sizes.width}) {
    if (!ordered) break;
    *range = {static_cast<int>(min[axis]), static_cast<int>(opt[axis]),
              static_cast<int>(max[axis])};
    ordered &= 1 <= range->min && range->min <= range->opt && range->opt <= range->max;
    axis += axis == 0 ? 2 : 1;
  }
  // Pictures are padded to multiples of the divisor, which have to be within the range.
  const int sides[] = {sizes.height.min, sizes.height.max, sizes.width.min, sizes.width.max};
  const bool divisible = std::all_of(std::begin(sides), std::end(sides),
                                     [](int side) { return side % kSizeDivisor == 0; });
  require(ordered && (divisible || !sizes.resizable()), "profiles",
          "min <= opt <= max, heights and widths that are multiples of 32", object["profiles"]);
  return sizes;
}

Metadata read(Json const& object) {
  require(object.at("format") == kFormat, "format", "1", object["format"]);
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
  result.normalisation = read_normalisation(object);
  result.profiles = read_profiles(object);
  result.sizes = read_sizes(object, result.profiles);
  result.nms_in_graph = object.value("nms_in_graph", false);
  result.nms = read_nms(object.at("nms"));
  return result;
}

// Returns the shapes as "[1, 3, 96, 96], [1, 3, 96, 96], [4, 3, 128, 128]".
std::string format_profile(Profile const& profile) {
  return concat(format_shape(profile.min), ", ", format_shape(profile.opt), ", ",
                format_shape(profile.max));
}

bool same_shape(Shape const& first, Shape const& second) {
  return std::equal(first.begin(), first.end(), second.begin(), second.end(),
                    [](int64_t a, int64_t b) { return a == b || a == -1 || b == -1; });
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
  const auto content = read_file(path);
  try {
    return read(Json::parse(content));
  } catch (Json::parse_error const& error) {
    throw UsageError(concat("the metadata ", path.string(), " cannot be read: ", error.what()));
  } catch (std::exception const& error) {
    throw UsageError(concat("the metadata ", path.string(), " is wrong: ", error.what()));
  }
}

void Metadata::check_engine(std::filesystem::path const& path,
                            std::map<std::string, Shape> const& found,
                            std::map<std::string, Profile> const& found_profiles) const {
  const auto refuse = [&](std::string const& what, std::string const& said,
                          std::string const& there) {
    throw std::runtime_error(
        concat("the metadata ", path.string(), " is that of another engine: ", what, " is ", said,
               " in it and ", there,
               " in the engine; it must be the file that was exported with the "
               "engine"));
  };
  for (auto const& [name, shape] : tensors) {
    const auto other = found.find(name);
    if (other == found.end()) {
      refuse(name, format_shape(shape), "missing");
    } else if (!same_shape(shape, other->second)) {
      refuse(name, format_shape(shape), format_shape(other->second));
    }
  }
  for (auto const& [name, shape] : found) {
    if (tensors.count(name) == 0) refuse(name, "missing", format_shape(shape));
  }
  for (auto const& [name, profile] : found_profiles) {
    const auto known = profiles.find(name);
    const std::string said = known == profiles.end() ? "missing" : format_profile(known->second);
    if (said == format_profile(profile)) continue;
    refuse(concat("the profile of ", name, " (smallest, usual, largest)"), said,
           format_profile(profile));
  }
}

}  // namespace codetr
