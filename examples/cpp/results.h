// The results of a run: detections.json, as codetr/results.py writes it, and what is printed.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

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

// Writes the document in COCO's form.
//   program: what ran, in words
void write_document(std::filesystem::path const& path, Results const& results,
                    Metadata const& metadata, Options const& options, std::string const& program);

// Prints the detections of a single picture, or their number in each of many pictures; measured
// times.
void print_results(Results const& results, std::vector<std::string> const& class_names);

}  // namespace codetr
