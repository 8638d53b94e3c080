#include "results.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <numeric>

#include "errors.h"
#include "files.h"
#include "pictures.h"

namespace codetr {
namespace {

using Json = nlohmann::ordered_json;

// In the order of the labels 0..79; the ids in COCO's annotation files have gaps.
constexpr struct {
  int id;
  char const* name;
} kCoco[] = {
    {1, "person"},         {2, "bicycle"},       {3, "car"},
    {4, "motorcycle"},     {5, "airplane"},      {6, "bus"},
    {7, "train"},          {8, "truck"},         {9, "boat"},
    {10, "traffic light"}, {11, "fire hydrant"}, {13, "stop sign"},
    {14, "parking meter"}, {15, "bench"},        {16, "bird"},
    {17, "cat"},           {18, "dog"},          {19, "horse"},
    {20, "sheep"},         {21, "cow"},          {22, "elephant"},
    {23, "bear"},          {24, "zebra"},        {25, "giraffe"},
    {27, "backpack"},      {28, "umbrella"},     {31, "handbag"},
    {32, "tie"},           {33, "suitcase"},     {34, "frisbee"},
    {35, "skis"},          {36, "snowboard"},    {37, "sports ball"},
    {38, "kite"},          {39, "baseball bat"}, {40, "baseball glove"},
    {41, "skateboard"},    {42, "surfboard"},    {43, "tennis racket"},
    {44, "bottle"},        {46, "wine glass"},   {47, "cup"},
    {48, "fork"},          {49, "knife"},        {50, "spoon"},
    {51, "bowl"},          {52, "banana"},       {53, "apple"},
    {54, "sandwich"},      {55, "orange"},       {56, "broccoli"},
    {57, "carrot"},        {58, "hot dog"},      {59, "pizza"},
    {60, "donut"},         {61, "cake"},         {62, "chair"},
    {63, "couch"},         {64, "potted plant"}, {65, "bed"},
    {67, "dining table"},  {70, "toilet"},       {72, "tv"},
    {73, "laptop"},        {74, "mouse"},        {75, "remote"},
    {76, "keyboard"},      {77, "cell phone"},   {78, "microwave"},
    {79, "oven"},          {80, "toaster"},      {81, "sink"},
    {82, "refrigerator"},  {84, "book"},         {85, "clock"},
    {86, "vase"},          {87, "scissors"},     {88, "teddy bear"},
    {89, "hair drier"},    {90, "toothbrush"},
};

// To so many decimals, as Python's round: through the decimal digits of the exact value.
double rounded(double value, int decimals) {
  char text[400];
  std::snprintf(text, sizeof(text), "%.*f", decimals, value);
  return std::strtod(text, nullptr);
}

std::string dump(Json const& value) {
  return value.dump(-1, ' ', true, Json::error_handler_t::replace);
}

template <class Value>
Json or_null(std::optional<Value> const& value) {
  return value ? Json(*value) : Json(nullptr);
}

Json as_json(Info const& info) {
  Json json{{"description", info.program},      {"network", info.network},
            {"threshold", info.threshold},      {"nms", or_null(info.nms)},
            {"nms_iou", or_null(info.nms_iou)}, {"top", or_null(info.top)}};
  auto const& [batch, height, width, runs] = info.benchmark;
  if (runs.empty()) return json;
  json["benchmark"] = {
      {"batch", batch}, {"height", height}, {"width", width}, {"runs", Json::array()}};
  for (Summary const& summary : runs) {
    json["benchmark"]["runs"].push_back({{"how", summary.how},
                                         {"median_ms", rounded(summary.median, 4)},
                                         {"p05_ms", rounded(summary.p05, 4)},
                                         {"p95_ms", rounded(summary.p95, 4)},
                                         {"min_ms", rounded(summary.min, 4)},
                                         {"samples", summary.samples}});
  }
  return json;
}

std::string format_list(std::vector<Json> const& rows) {
  std::string text;
  for (Json const& row : rows) text += concat(text.empty() ? "\n  " : ",\n  ", dump(row));
  return rows.empty() ? "[]" : concat("[", text, "\n ]");
}

}  // namespace

Summary summarise(std::string how, std::vector<float> samples) {
  std::sort(samples.begin(), samples.end());
  const size_t count = samples.size();
  const auto at = [&](double share) {
    return samples[static_cast<size_t>(std::nearbyint(share * static_cast<double>(count - 1)))];
  };
  const double median = (double{samples[(count - 1) / 2]} + samples[count / 2]) / 2;
  return {std::move(how), median, at(0.05), at(0.95), samples.front(), count};
}

std::vector<int64_t> category_ids(std::vector<std::string> const& class_names) {
  const auto same = [](std::string const& name, auto const& coco) { return name == coco.name; };
  std::vector<int64_t> ids(class_names.size());
  std::iota(ids.begin(), ids.end(), int64_t{0});
  if (std::equal(class_names.begin(), class_names.end(), std::begin(kCoco), std::end(kCoco),
                 same)) {
    std::transform(std::begin(kCoco), std::end(kCoco), ids.begin(),
                   [](auto const& coco) { return coco.id; });
  }
  return ids;
}

std::vector<Row> make_rows(Detections const& detections,
                           std::vector<std::string> const& class_names) {
  const std::vector<int64_t> ids = category_ids(class_names);
  std::vector<Row> rows;
  for (Detection const& detection : detections) {
    if (detection.label >= static_cast<int64_t>(ids.size())) {
      throw std::runtime_error(concat("labels: expected numbers below ", ids.size(),
                                      ", the number of class names, got ", detection.label));
    }
    const auto label = static_cast<size_t>(detection.label);
    const auto [x1, y1, x2, y2] = detection.box;
    Row row{ids[label],
            class_names[label],
            rounded(x1, 3),
            rounded(y1, 3),
            rounded(double{x2} - x1, 3),
            rounded(double{y2} - y1, 3),
            rounded(detection.score, 6),
            0};
    row.area = rounded(row.width * row.height, 3);
    rows.push_back(row);
  }
  return rows;
}

void write_document(std::filesystem::path const& path, std::vector<Found> const& pictures,
                    std::vector<std::string> const& class_names, Info const& info) {
  std::vector<std::string> names;
  for (Found const& picture : pictures) names.push_back(picture.name);
  const std::vector<int64_t> ids = image_ids(names), categories = category_ids(class_names);
  std::vector<Json> images, category_rows, annotations;
  for (size_t i = 0; i < pictures.size(); ++i) {
    Found const& picture = pictures[i];
    images.push_back({{"id", ids[i]},
                      {"file_name", picture.name},
                      {"width", picture.width},
                      {"height", picture.height}});
    for (Row const& row : make_rows(picture.detections, class_names)) {
      annotations.push_back({{"id", annotations.size() + 1},
                             {"image_id", ids[i]},
                             {"file_name", picture.name},
                             {"category_id", row.category_id},
                             {"category_name", row.category_name},
                             {"bbox", {row.x, row.y, row.width, row.height}},
                             {"score", row.score},
                             {"area", row.area},
                             {"iscrowd", 0}});
    }
  }
  for (size_t label = 0; label < class_names.size(); ++label) {
    category_rows.push_back({{"id", categories[label]}, {"name", class_names[label]}});
  }
  write_file(path, concat("{\n \"info\": ", dump(as_json(info)), ",\n \"images\": ",
                          format_list(images), ",\n \"categories\": ", format_list(category_rows),
                          ",\n \"annotations\": ", format_list(annotations), "\n}\n"));
}

}  // namespace codetr
