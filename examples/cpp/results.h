// The results of a run: detections.json, as codetr/results.py writes it, and what is printed.
#pragma once

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <vector>

#include "files.h"
#include "program.h"

namespace codetr {

struct Found {
  std::string name;  // of the picture
  cv::Size size;
  Detections detections;
};

struct Results {
  std::vector<Found> pictures;
  // Shape [N, 3, H, W] of the timed input, and the times; empty if they were not measured.
  Shape timed_shape;
  std::vector<Samples> timed;
};

using Json = nlohmann::ordered_json;

// Rounds as Python does: through the decimal digits of the exact value.
inline double rounded(double value, int decimals) {
  char text[400];
  std::snprintf(text, sizeof(text), "%.*f", decimals, value);
  return std::strtod(text, nullptr);
}

// Returns x, y, width and height in pixels.
inline std::array<double, 4> to_bbox(std::array<float, 4> const& box) {
  const auto [x1, y1, x2, y2] = box;
  return {rounded(x1, 3), rounded(y1, 3), rounded(double{x2} - x1, 3), rounded(double{y2} - y1, 3)};
}

// Returns the category id of each label: for COCO's 80 classes the ids of COCO's annotation files,
// else the label itself.
inline std::vector<int> category_ids(std::vector<std::string> const& names) {
  static const std::set<int> kUnused{0, 12, 26, 29, 30, 45, 66, 68, 69, 71, 83};
  const bool is_coco =
      names.size() == 80 && names.front() == "person" && names.back() == "toothbrush";
  std::vector<int> ids;
  for (int id = 0; ids.size() < names.size(); ++id) {
    if (!is_coco || !kUnused.contains(id)) ids.push_back(id);
  }
  return ids;
}

// Returns an id for each picture: its name if all are numbers (000000000139.jpg), else 1, 2, 3, ...
inline std::vector<int64_t> image_ids(std::vector<Found> const& pictures) {
  std::vector<int64_t> ids, counted;
  for (Found const& picture : pictures) {
    counted.push_back(static_cast<int64_t>(counted.size()) + 1);
    const std::string stem = fs::path(picture.name).stem();
    const bool is_number = stem.find_first_not_of("0123456789") == stem.npos && stem.size() <= 18;
    if (is_number) ids.push_back(std::stoll(stem));
  }
  return std::set<int64_t>(ids.begin(), ids.end()).size() == pictures.size() ? ids : counted;
}

// Returns the value that a share of the samples does not exceed.
inline double quantile(std::vector<float> samples, double share) {
  std::ranges::sort(samples);
  return samples[static_cast<size_t>(share * static_cast<double>(samples.size() - 1) + 0.5)];
}

inline Json to_json(Shape const& shape, std::vector<Samples> const& timed) {
  Json runs = Json::array();
  for (auto const& [how, samples] : timed) {
    runs.push_back({{"how", how},
                    {"median_ms", quantile(samples, 0.5)},
                    {"p05_ms", quantile(samples, 0.05)},
                    {"p95_ms", quantile(samples, 0.95)},
                    {"samples", samples.size()}});
  }
  return {{"batch", shape[0]}, {"height", shape[2]}, {"width", shape[3]}, {"runs", runs}};
}

// Writes the document in COCO's form.
//   program: what ran, in words
inline void write_document(fs::path const& path, Results const& results, Metadata const& metadata,
                           Options const& options, std::string const& program) {
  auto const& names = metadata.class_names;
  const std::vector<int64_t> ids = image_ids(results.pictures);
  const std::vector<int> category_id = category_ids(names);
  Json images = Json::array(), categories = Json::array(), annotations = Json::array();
  for (size_t i = 0; i < ids.size(); ++i) {
    auto const& [name, size, detections] = results.pictures[i];
    images.push_back(
        {{"id", ids[i]}, {"file_name", name}, {"width", size.width}, {"height", size.height}});
    for (auto const& [box, score, label] : detections) {
      const auto bbox = to_bbox(box);
      annotations.push_back({{"id", annotations.size() + 1},
                             {"image_id", ids[i]},
                             {"file_name", name},
                             {"category_id", category_id.at(label)},
                             {"category_name", names.at(label)},
                             {"bbox", bbox},
                             {"score", rounded(score, 6)},
                             {"area", rounded(bbox[2] * bbox[3], 3)},
                             {"iscrowd", 0}});
    }
  }
  for (size_t label = 0; label < names.size(); ++label) {
    categories.push_back({{"id", category_id[label]}, {"name", names[label]}});
  }
  const auto or_null = [](auto const& value) { return value ? Json(*value) : Json(nullptr); };
  Json info{{"description", program},
            {"network", metadata.description},
            {"threshold", options.threshold},
            {"nms", or_null(options.nms)},
            {"nms_iou", or_null(options.nms_iou)},
            {"top", or_null(options.top)}};
  if (!results.timed.empty()) info["benchmark"] = to_json(results.timed_shape, results.timed);
  const Json document{
      {"info", info}, {"images", images}, {"categories", categories}, {"annotations", annotations}};
  // File names that are no UTF-8 are written with replacement characters.
  write_file(path, document.dump(1, ' ', true, Json::error_handler_t::replace) + "\n");
}

// Prints the detections of a single picture, or their number in each of many pictures; measured
// times.
inline void print_results(Results const& results, std::vector<std::string> const& class_names) {
  for (auto const& [name, size, detections] : results.pictures) {
    const char* plural = detections.size() == 1 ? "" : "s";
    std::printf("%s, %dx%d: %zu detection%s\n", name.c_str(), size.width, size.height,
                detections.size(), plural);
    if (results.pictures.size() > 1) continue;
    std::printf("%-20s  %5s %7s %7s %7s %7s\n", "class", "score", "x", "y", "width", "height");
    for (auto const& [box, score, label] : detections) {
      const auto [x, y, width, height] = to_bbox(box);
      std::printf("%-20s  %5.3f %7.1f %7.1f %7.1f %7.1f\n", class_names.at(label).c_str(), score, x,
                  y, width, height);
    }
  }
  for (auto const& [how, samples] : results.timed) {
    std::printf("GPU time of %zu runs, input %s (%s): median %.3f ms, p5 %.3f, p95 %.3f\n",
                samples.size(), format_shape(results.timed_shape).c_str(), how.c_str(),
                quantile(samples, 0.5), quantile(samples, 0.05), quantile(samples, 0.95));
  }
}

}  // namespace codetr
