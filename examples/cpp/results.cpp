#include "results.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <iostream>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "errors.h"
#include "files.h"

namespace codetr {
namespace {

using Json = nlohmann::ordered_json;
using Cells = std::vector<std::string>;

constexpr size_t kMaxRows = 50;

std::string format(double number, int decimals) {
  char text[400];
  std::snprintf(text, sizeof(text), "%.*f", decimals, number);
  return text;
}

// Rounds as Python does: through the decimal digits of the exact value.
double rounded(double value, int decimals) {
  return std::strtod(format(value, decimals).c_str(), nullptr);
}

// A detection as the document and the table give it: x, y, width, height in pixels, rounded.
struct Row {
  std::array<double, 4> bbox;
  double score;
};

Row to_row(Detection const& detection) {
  const auto [x1, y1, x2, y2] = detection.box;
  return {
      {rounded(x1, 3), rounded(y1, 3), rounded(double{x2} - x1, 3), rounded(double{y2} - y1, 3)},
      rounded(detection.score, 6)};
}

// Returns the category id of each label: for COCO's 80 classes the ids of COCO's annotation files,
// else the label itself.
std::vector<int> category_ids(std::vector<std::string> const& names) {
  static const std::set<int> kUnused{0, 12, 26, 29, 30, 45, 66, 68, 69, 71, 83};
  const bool is_coco =
      names.size() == 80 && names.front() == "person" && names.back() == "toothbrush";
  std::vector<int> ids;
  for (int id = 0; ids.size() < names.size(); ++id) {
    if (!is_coco || kUnused.count(id) == 0) ids.push_back(id);
  }
  return ids;
}

// Returns an id for each picture: its name if all are numbers (000000000139.jpg), else 1, 2, 3, ...
std::vector<int64_t> image_ids(std::vector<Found> const& pictures) {
  std::vector<int64_t> ids, counted;
  for (Found const& picture : pictures) {
    counted.push_back(static_cast<int64_t>(counted.size()) + 1);
    const std::string stem = std::filesystem::path(picture.name).stem();
    const bool is_number = stem.find_first_not_of("0123456789") == stem.npos && stem.size() <= 18;
    if (is_number) ids.push_back(std::stoll(stem));
  }
  return std::set<int64_t>(ids.begin(), ids.end()).size() == pictures.size() ? ids : counted;
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return (values[(values.size() - 1) / 2] + values[values.size() / 2]) / 2;
}

// A value of sorted samples.
double quantile(std::vector<float> const& sorted, double share) {
  return sorted[static_cast<size_t>(
      std::nearbyint(share * static_cast<double>(sorted.size() - 1)))];
}

// Summarises samples in milliseconds, as benchmarks.timing.
Json summarise(Samples const& samples) {
  std::vector<float> sorted = samples.milliseconds;
  std::sort(sorted.begin(), sorted.end());
  return {{"how", samples.how},
          {"median_ms", rounded(median({sorted.begin(), sorted.end()}), 4)},
          {"p05_ms", rounded(quantile(sorted, 0.05), 4)},
          {"p95_ms", rounded(quantile(sorted, 0.95), 4)},
          {"min_ms", rounded(sorted.front(), 4)},
          {"samples", sorted.size()}};
}

template <class Value>
Json or_null(std::optional<Value> const& value) {
  return value ? Json(*value) : Json(nullptr);
}

std::string dump(Json const& value) {
  return value.dump(-1, ' ', true, Json::error_handler_t::replace);
}

std::string format_list(std::vector<Json> const& rows) {
  std::string text;
  for (Json const& row : rows) text += concat(text.empty() ? "\n  " : ",\n  ", dump(row));
  return rows.empty() ? "[]" : concat("[", text, "\n ]");
}

std::string counted(size_t number, char const* noun) {
  return concat(number, " ", noun, number == 1 ? "" : "s");
}

// Returns "2 cup, 1 spoon": the most frequent class first, equals in order of appearance.
std::string summary(Detections const& detections, std::vector<std::string> const& class_names) {
  std::vector<std::pair<int, std::string>> counts;
  for (Detection const& detection : detections) {
    std::string const& name = class_names.at(detection.label);
    const auto known = std::find_if(counts.begin(), counts.end(),
                                    [&](auto const& entry) { return entry.second == name; });
    if (known == counts.end()) {
      counts.emplace_back(1, name);
    } else {
      ++known->first;
    }
  }
  std::stable_sort(counts.begin(), counts.end(),
                   [](auto const& a, auto const& b) { return a.first > b.first; });
  std::string text;
  for (auto const& [count, name] : counts) {
    text += concat(text.empty() ? "" : ", ", count, " ", name);
  }
  return text;
}

// Counts characters of UTF-8, not bytes.
size_t width(std::string const& text) {
  return static_cast<size_t>(
      std::count_if(text.begin(), text.end(), [](char byte) { return (byte & 0xc0) != 0x80; }));
}

// Prints rows below their headers. The columns 1 to `end_right` - 1 are aligned to the right.
void print_table(std::string const& title, std::vector<Cells> rows, size_t end_right) {
  const size_t shown = std::min(rows.size(), kMaxRows + 1);  // with the headers
  const size_t hidden = rows.size() - shown;
  rows.resize(shown);
  std::vector<size_t> widths(rows[0].size());
  for (Cells const& row : rows) {
    for (size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], width(row[i]));
  }
  std::cout << title << '\n';
  for (Cells const& row : rows) {
    std::string line;
    for (size_t i = 0; i < row.size(); ++i) {
      const std::string padding(widths[i] - width(row[i]), ' ');
      const bool right = i >= 1 && i < end_right;
      line += (i == 0 ? "" : "  ") + (right ? padding + row[i] : row[i] + padding);
    }
    std::cout << line.substr(0, line.find_last_not_of(' ') + 1) << '\n';
  }
  if (hidden > 0) std::cout << "… and " << hidden << " more rows\n";
}

void print_times(std::vector<Times> const& runs) {
  const size_t first = runs.size() > 1 ? 1 : 0;
  std::string text;
  for (char const* stage : {"read", "preprocess", "inference", "postprocess", "draw"}) {
    std::vector<double> values;
    for (size_t i = first; i < runs.size(); ++i) values.push_back(runs[i].at(stage));
    text += concat(text.empty() ? "" : ", ", stage, " ", format(median(values), 1));
  }
  const std::string note = runs.size() == 1
                               ? "one run, warm-up included"
                               : concat("median; the first run, with the warm-up, took ",
                                        format(runs[0].at("inference"), 1), " for inference");
  std::cout << "ms per picture: " << text << " (" << note << ")\n";
}

}  // namespace

void write_document(std::filesystem::path const& path, Results const& results,
                    std::vector<std::string> const& class_names, Options const& options,
                    std::string const& program, std::string const& network) {
  const std::vector<int64_t> ids = image_ids(results.pictures);
  const std::vector<int> categories = category_ids(class_names);
  std::vector<Json> images, category_rows, annotations;
  for (size_t i = 0; i < ids.size(); ++i) {
    Found const& picture = results.pictures[i];
    images.push_back({{"id", ids[i]},
                      {"file_name", picture.name},
                      {"width", picture.width},
                      {"height", picture.height}});
    for (Detection const& detection : picture.detections) {
      const Row row = to_row(detection);
      annotations.push_back({{"id", annotations.size() + 1},
                             {"image_id", ids[i]},
                             {"file_name", picture.name},
                             {"category_id", categories[detection.label]},
                             {"category_name", class_names[detection.label]},
                             {"bbox", row.bbox},
                             {"score", row.score},
                             {"area", rounded(row.bbox[2] * row.bbox[3], 3)},
                             {"iscrowd", 0}});
    }
  }
  for (size_t label = 0; label < class_names.size(); ++label) {
    category_rows.push_back({{"id", categories[label]}, {"name", class_names[label]}});
  }
  Json info{{"description", program},
            {"network", network},
            {"threshold", options.threshold},
            {"nms", or_null(options.nms)},
            {"nms_iou", or_null(options.nms_iou)},
            {"top", or_null(options.top)}};
  if (auto const& [batch, height, width, runs] = results.benchmark; !runs.empty()) {
    info["benchmark"] = {
        {"batch", batch}, {"height", height}, {"width", width}, {"runs", Json::array()}};
    for (Samples const& samples : runs) info["benchmark"]["runs"].push_back(summarise(samples));
  }
  write_file(path, concat("{\n \"info\": ", dump(info), ",\n \"images\": ", format_list(images),
                          ",\n \"categories\": ", format_list(category_rows),
                          ",\n \"annotations\": ", format_list(annotations), "\n}\n"));
}

void print_results(Results const& results, std::vector<std::string> const& class_names) {
  auto const& pictures = results.pictures;
  std::vector<Cells> rows;
  if (pictures.size() == 1) {
    rows.push_back({"class", "score", "x", "y", "width", "height"});
    for (Detection const& detection : pictures[0].detections) {
      const Row row = to_row(detection);
      rows.push_back({class_names[detection.label], format(row.score, 3)});
      for (double side : row.bbox) rows.back().push_back(format(side, 1));
    }
    print_table(concat(pictures[0].name, ": ", counted(rows.size() - 1, "detection")), rows, 6);
  } else {
    rows.push_back({"picture", "size", "found", "classes"});
    size_t total = 0;
    for (auto const& [name, height, width, detections] : pictures) {
      total += detections.size();
      rows.push_back({name, concat(width, "x", height), std::to_string(detections.size()),
                      summary(detections, class_names)});
    }
    print_table(concat(pictures.size(), " pictures: ", counted(total, "detection")), rows, 3);
  }
  print_times(results.times);
  auto const& [batch, height, width, runs] = results.benchmark;
  for (Samples const& samples : runs) {
    const Json times = summarise(samples);
    std::cout << "GPU time of " << counted(samples.milliseconds.size(), "run") << ", batch "
              << batch << " of " << height << "x" << width << " (" << samples.how << "): median "
              << format(times["median_ms"], 3) << " ms, p5 " << format(times["p05_ms"], 3)
              << ", p95 " << format(times["p95_ms"], 3) << '\n';
  }
}

}  // namespace codetr
