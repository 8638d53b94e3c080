// What the program prints, as codetr.console does without rich.
#pragma once

#include <array>
#include <string>
#include <vector>

#include "results.h"

namespace codetr {

// Milliseconds of each picture's share of a run.
struct Times {
  double read, preprocess, inference, postprocess, draw;
};

// A table: the detections of a single picture, or one row a picture of many.
void print_results(std::vector<Found> const& pictures, std::vector<std::string> const& class_names);

// The only run's times, or the median without the first run, which holds the warm-up.
void print_times(std::vector<Times> const& runs);

void print_benchmark(Benchmark const& benchmark);

}  // namespace codetr
