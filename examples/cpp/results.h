// The results of a run: detections.json, as codetr/results.py writes it, and the printed tables.
#pragma once

#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "arguments.h"
#include "network.h"
#include "postprocess.h"

namespace codetr {

struct Found {
  std::string name;  // of the picture
  int height, width;
  Detections detections;
};

// Milliseconds of each stage ("read", "preprocess", "inference", "postprocess", "draw"), divided by
// the number of pictures in the run.
using Times = std::map<std::string, double>;

// Times of the network on an input of this shape; no samples if they were not measured.
struct Benchmark {
  int batch = 0, height = 0, width = 0;
  std::vector<Samples> runs;
};

struct Results {
  std::vector<Found> pictures;
  std::vector<Times> times;  // of each run; the first includes the warm-up
  Benchmark benchmark;
};

// Writes the document in COCO's form.
//   program, network: what ran, in words
void write_document(std::filesystem::path const& path, Results const& results,
                    std::vector<std::string> const& class_names, Options const& options,
                    std::string const& program, std::string const& network);

// Prints a table (the detections of a single picture, or one row for each of many pictures) and the
// times.
void print_results(Results const& results, std::vector<std::string> const& class_names);

}  // namespace codetr
