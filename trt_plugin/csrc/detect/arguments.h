// The command line.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "postprocess.h"

namespace codetr {

// How the programs differ.
struct Program {
  char const* name;
  char const* model_option;  // "--engine": what names the file with the network
  char const* model_help;
  char const* library_option;  // "--torchtrt": one more library to load; null for none
  char const* library_help;
  bool runs_on_cpu;     // whether --device cpu is allowed
  bool has_cuda_graph;  // whether --no-cuda-graph means something
};

inline constexpr int kCpu = -1;

struct Options {
  std::filesystem::path model;
  std::vector<std::string> pictures;
  std::optional<std::filesystem::path> out, json, dump, replay, library;
  std::vector<std::filesystem::path> plugins;
  double threshold = 0.3;
  std::optional<size_t> top;
  std::optional<std::string> nms;
  std::optional<double> nms_iou;
  std::optional<int> batch;                    // pictures that are read, padded and run together
  std::optional<int> max_size, height, width;  // of the input, if its sizes are dynamic; pixels
  int device = 0;                              // number of the GPU, or kCpu
  bool cuda_graph = true;
  int benchmark = 0;  // timed runs
  bool help = false, version = false;

  // <stem>.json beside the model.
  std::filesystem::path metadata() const;
};

// Throws UsageError naming the option, what it was and what it should be.
Options parse_arguments(Program const& program, std::vector<std::string> const& arguments);

std::string usage(Program const& program);

}  // namespace codetr
