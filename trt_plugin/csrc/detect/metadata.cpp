#include "metadata.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>

#include "errors.h"
#include "files.h"

namespace codetr {
namespace {

using Json = nlohmann::json;

constexpr int kFormat = 1;

// A field of the file, and how its errors are worded.
class Field {
 public:
  Field(Json const& object, std::string name) : name_(std::move(name)) {
    const auto found = object.find(name_);
    if (found == object.end()) throw UsageError(concat("the field ", name_, " is missing"));
    value_ = &*found;
  }

  Json const& value() const { return *value_; }

  void require(bool fine, char const* expected) const {
    if (!fine) throw UsageError(concat(name_, ": expected ", expected, ", got ", value_->dump()));
  }

  std::string text() const {
    require(value_->is_string(), "a string");
    return value_->get<std::string>();
  }

  bool truth() const {
    require(value_->is_boolean(), "true or false");
    return value_->get<bool>();
  }

  int size() const {
    const bool fine = value_->is_number_integer() && *value_ > 0 && *value_ <= INT32_MAX;
    require(fine, "a positive integer");
    return value_->get<int>();
  }

  double number() const {
    require(value_->is_number() && *value_ >= 0, "a number from 0 on");
    return value_->get<double>();
  }

  std::vector<std::string> texts() const {
    const auto is_text = [](Json const& item) { return item.is_string(); };
    require(value_->is_array() && std::all_of(value_->begin(), value_->end(), is_text),
            "a list of strings");
    return value_->get<std::vector<std::string>>();
  }

  std::array<float, 3> colour(bool positive) const {
    bool fine = value_->is_array() && value_->size() == 3;
    for (size_t i = 0; fine && i < 3; ++i) {
      Json const& number = (*value_)[i];
      fine = number.is_number() && (!positive || number > 0);
    }
    require(fine, positive ? "three positive numbers (R, G, B)" : "three numbers (R, G, B)");
    std::array<float, 3> result;
    for (size_t i = 0; i < 3; ++i) result[i] = static_cast<float>((*value_)[i].get<double>());
    return result;
  }

  std::vector<TensorDescription> tensors() const {
    static constexpr char kExpected[] = R"(a list of {"name", "shape", "dtype"})";
    require(value_->is_array() && !value_->empty(), kExpected);
    std::vector<TensorDescription> result;
    for (Json const& tensor : *value_) {
      bool fine = tensor.is_object() && tensor.contains("name") && tensor["name"].is_string() &&
                  tensor.contains("shape") && tensor["shape"].is_array();
      for (size_t i = 0; fine && i < tensor["shape"].size(); ++i) {
        fine = tensor["shape"][i].is_number_integer() && tensor["shape"][i] >= -1;
      }
      require(fine, kExpected);
      result.push_back({tensor["name"], tensor["shape"].get<std::vector<int64_t>>()});
    }
    return result;
  }

 private:
  std::string name_;
  Json const* value_;
};

template <class Choice>
Choice choose(Field const& field, std::map<std::string, Choice> const& choices,
              char const* expected) {
  const auto found = field.value().is_string() ? choices.find(field.text()) : choices.end();
  field.require(found != choices.end(), expected);
  return found->second;
}

Nms read_nms(Field const& field, bool in_graph) {
  Json const& object = field.value();
  field.require(object.is_object(), "an object");
  field.require(!in_graph || (object.contains("method") && object.contains("iou_threshold")),
                R"(an object with "method" and "iou_threshold")");
  Nms nms;
  if (object.contains("method")) {
    nms.method = choose<NmsMethod>(
        Field(object, "method"),
        {{"soft", NmsMethod::kSoft}, {"hard", NmsMethod::kHard}, {"none", NmsMethod::kNone}},
        "soft, hard or none");
  }
  if (object.contains("decay")) {
    nms.decay = choose<Decay>(Field(object, "decay"),
                              {{"linear", Decay::kLinear}, {"gaussian", Decay::kGaussian}},
                              "linear or gaussian");
  }
  for (auto [name, target] : {std::pair{"iou_threshold", &nms.iou_threshold},
                              {"sigma", &nms.sigma},
                              {"min_score", &nms.min_score}}) {
    if (object.contains(name)) *target = Field(object, name).number();
  }
  if (object.contains("max_per_img") && !object["max_per_img"].is_null()) {
    nms.max_per_img = static_cast<size_t>(Field(object, "max_per_img").size());
  }
  return nms;
}

// A shape of an input, as a profile has it.
std::vector<int64_t> read_shape(Field const& field, Json const& profile, char const* which,
                                char const* expected) {
  const auto is_size = [](Json const& size) {
    return size.is_number_integer() && size >= 1 && size <= INT32_MAX;
  };
  const auto shape = profile.find(which);
  field.require(shape != profile.end() && shape->is_array() &&
                    std::all_of(shape->begin(), shape->end(), is_size),
                expected);
  return shape->get<std::vector<int64_t>>();
}

bool in_order(std::vector<int64_t> const& shape, Profile const& profile) {
  auto const& [min, opt, max] = profile;
  bool fine =
      min.size() == shape.size() && opt.size() == shape.size() && max.size() == shape.size();
  for (size_t i = 0; fine && i < shape.size(); ++i) {
    fine = min[i] <= opt[i] && opt[i] <= max[i] &&
           (shape[i] == -1 || (min[i] == shape[i] && max[i] == shape[i]));
  }
  return fine;
}

// Of every input with a size of -1. A file without the field has none, and no such input.
std::map<std::string, Profile> read_profiles(Json const& object,
                                             std::vector<TensorDescription> const& inputs) {
  static constexpr char kExpected[] =
      "for every input with a size of -1, and no other, "
      R"({"min", "opt", "max"}, shapes in this order)";
  static const Json kNone{{"profiles", Json::object()}};
  const Field field(object.contains("profiles") ? object : kNone, "profiles");
  Json const& profiles = field.value();
  field.require(profiles.is_object(), "an object");
  std::map<std::string, Profile> result;
  for (auto const& [name, shape] : inputs) {
    if (std::find(shape.begin(), shape.end(), -1) == shape.end()) continue;
    field.require(
        profiles.contains(name) && profiles[name].is_object() && profiles[name].size() == 3,
        kExpected);
    const auto read = [&](char const* which) {
      return read_shape(field, profiles[name], which, kExpected);
    };
    result[name] = {read("min"), read("opt"), read("max")};
    field.require(in_order(shape, result[name]), kExpected);
  }
  field.require(profiles.size() == result.size(), kExpected);
  return result;
}

// The limits of a resized picture's longer and shorter side, which older files lack.
std::optional<std::pair<int, int>> read_scale(Json const& resize) {
  if (!resize.contains("scale")) return std::nullopt;
  const Field field(resize, "scale");
  Json const& scale = field.value();
  const auto is_size = [](Json const& side) {
    return side.is_number_integer() && side >= 1 && side <= INT32_MAX;
  };
  field.require(scale.is_array() && scale.size() == 2 && is_size(scale[0]) && is_size(scale[1]) &&
                    scale[0] >= scale[1],
                "[long, short], two positive integers");
  return std::pair{scale[0].get<int>(), scale[1].get<int>()};
}

// Of the profile of `images`, else the only ones.
InputSizes read_sizes(Json const& object, std::map<std::string, Profile> const& profiles) {
  const Field resize(object, "resize");
  static constexpr char kResize[] = R"({"height": H, "width": W, "mode": "fit_pad"})";
  resize.require(resize.value().is_object() && resize.value().value("mode", Json()) == "fit_pad",
                 kResize);
  const auto fixed = [](Field const& field) {
    return Range{field.size(), field.size(), field.size()};
  };
  const InputSizes usual{fixed(Field(object, "batch")), fixed(Field(resize.value(), "height")),
                         fixed(Field(resize.value(), "width")), read_scale(resize.value())};
  const auto found = profiles.find("images");
  if (found == profiles.end()) return usual;
  auto const& [min, opt, max] = found->second;
  const Field field(object, "profiles");
  field.require(min.size() == 4, "images of shape [N, 3, H, W]");
  const auto range = [&, &min = min, &opt = opt, &max = max](size_t i) {
    return Range{static_cast<int>(min[i]), static_cast<int>(opt[i]), static_cast<int>(max[i])};
  };
  const InputSizes sizes{range(0), range(2), range(3), usual.scale};
  const auto whole = [](Range const& side) {
    return side.min % kSizeDivisor == 0 && side.max % kSizeDivisor == 0;
  };
  // Pictures are padded to such a multiple, which has to be within the range.
  field.require(!sizes.resizable() || (whole(sizes.height) && whole(sizes.width)),
                "heights and widths that are multiples of 32");
  return sizes;
}

Metadata read(Json const& object) {
  if (!object.is_object() || object.value("format", Json()) != kFormat) {
    throw UsageError(concat(R"(expected an object with "format": )", kFormat));
  }
  Metadata result;
  result.description =
      concat(Field(object, "model").text(), ", TensorRT ", Field(object, "tensorrt_version").text(),
             ", ", Field(object, "gpu").text(), ", ", Field(object, "precision").text());
  result.inputs = Field(object, "inputs").tensors();
  result.outputs = Field(object, "outputs").tensors();
  result.class_names = Field(object, "class_names").texts();
  result.normalisation = {Field(object, "mean").colour(false), Field(object, "std").colour(true)};
  result.profiles = read_profiles(object, result.inputs);
  result.sizes = read_sizes(object, result.profiles);
  if (object.contains("nms_in_graph")) result.nms_in_graph = Field(object, "nms_in_graph").truth();
  result.nms = read_nms(Field(object, "nms"), result.nms_in_graph);
  return result;
}

bool same_shape(std::vector<int64_t> const& first, std::vector<int64_t> const& second) {
  return std::equal(first.begin(), first.end(), second.begin(), second.end(),
                    [](int64_t a, int64_t b) { return a == b || a == -1 || b == -1; });
}

}  // namespace

std::string format_shape(std::vector<int64_t> const& shape) {
  std::string text;
  for (int64_t size : shape) {
    text += text.empty() ? "" : ", ";
    text += size < 0 ? "?" : std::to_string(size);
  }
  return concat("[", text, "]");
}

Metadata Metadata::load(std::filesystem::path const& path) {
  const auto content = read_file(path);
  try {
    return read(Json::parse(content.begin(), content.end()));
  } catch (Json::exception const& error) {
    throw UsageError(concat("the metadata ", path.string(), " cannot be read: ", error.what()));
  } catch (UsageError const& error) {
    throw UsageError(concat("the metadata ", path.string(), " is wrong: ", error.what()));
  }
}

void Metadata::check_tensors(std::filesystem::path const& path,
                             std::vector<TensorDescription> const& found_inputs,
                             std::vector<TensorDescription> const& found_outputs) const {
  const auto compare = [&](std::vector<TensorDescription> const& described,
                           std::vector<TensorDescription> const& found) {
    std::map<std::string, std::vector<int64_t>> said, there;
    std::set<std::string> names;
    for (auto const& tensor : described) said[tensor.name] = tensor.shape;
    for (auto const& tensor : found) there[tensor.name] = tensor.shape;
    for (auto const& tensors : {said, there}) {
      for (auto const& tensor : tensors) names.insert(tensor.first);
    }
    const auto show = [](auto const& shapes, std::string const& name) {
      return shapes.count(name) == 0 ? std::string("missing") : format_shape(shapes.at(name));
    };
    for (std::string const& name : names) {
      const bool both = said.count(name) != 0 && there.count(name) != 0;
      if (both && same_shape(said[name], there[name])) continue;
      throw std::runtime_error(concat("the metadata ", path.string(),
                                      " is that of another engine: ", name, " is ",
                                      show(said, name), " in it and ", show(there, name),
                                      " in the engine; it must be the file that was exported with "
                                      "the engine"));
    }
  };
  compare(inputs, found_inputs);
  compare(outputs, found_outputs);
}

void Metadata::check_profile(std::filesystem::path const& path, std::string const& input,
                             Profile const& found) const {
  const auto described = profiles.find(input);
  if (described == profiles.end()) return;
  const auto show = [](Profile const& profile) {
    return concat(format_shape(profile.min), ", ", format_shape(profile.opt), ", ",
                  format_shape(profile.max));
  };
  auto const& [min, opt, max] = described->second;
  if (min == found.min && opt == found.opt && max == found.max) return;
  throw std::runtime_error(
      concat("the metadata ", path.string(), " is that of another engine: the profile of ", input,
             " (smallest, usual, largest) is ", show(described->second), " in it and ", show(found),
             " in the engine; it must be the file that was exported with the engine"));
}

}  // namespace codetr
