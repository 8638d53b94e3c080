// What a run found, as a document in COCO's form: the same that codetr.results.coco_document makes.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "postprocess.h"

namespace codetr {

struct Found {
  std::string name;  // of the picture
  int height, width;
  Detections detections;
};

// Of samples in milliseconds, as benchmarks.timing.summarise.
struct Summary {
  std::string how;
  double median, p05, p95, min;
  size_t samples;
};

Summary summarise(std::string how, std::vector<float> samples);

// The GPU times of the network on an input of this shape.
struct Benchmark {
  int batch = 0, height = 0, width = 0;
  std::vector<Summary> runs;  // empty if there was none
};

// Facts about the run; what was not given is null.
struct Info {
  std::string program, network;
  double threshold;
  std::optional<std::string> nms;
  std::optional<double> nms_iou;
  std::optional<size_t> top;
  Benchmark benchmark;
};

// A detection as the document gives it.
struct Row {
  int64_t category_id;
  std::string category_name;
  double x, y, width, height, score, area;  // pixels; rounded
};

// The category id of each label: COCO's own for COCO's 80 names, else the label itself.
std::vector<int64_t> category_ids(std::vector<std::string> const& class_names);

// Throws std::runtime_error for a label that has no name.
std::vector<Row> make_rows(Detections const& detections,
                           std::vector<std::string> const& class_names);

// Writes the document, one entry of a list a line; whole or not at all.
void write_document(std::filesystem::path const& path, std::vector<Found> const& pictures,
                    std::vector<std::string> const& class_names, Info const& info);

}  // namespace codetr
