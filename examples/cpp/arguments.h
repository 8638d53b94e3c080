// The command line.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

namespace codetr {

// How the two programs differ.
struct Program {
  std::string name;
  std::string model_option, model_help;      // "--engine": the file with the network
  std::string library_option, library_help;  // "--torchtrt": one more library to load; may be empty
  bool runs_on_cpu;                          // whether --device cpu is allowed
  bool has_cuda_graph;                       // whether there is --no-cuda-graph
  std::string versions;                      // of what runs the network, for --version
};

inline constexpr int kCpu = -1;

struct Options {
  std::filesystem::path model;
  std::vector<std::string> pictures;
  std::optional<std::filesystem::path> out, json, dump, replay;
  std::string library;
  std::vector<std::string> plugins;
  double threshold = 0.3;
  std::optional<size_t> top;
  std::optional<std::string> nms;
  std::optional<double> nms_iou;
  std::optional<int> batch;                    // pictures that are read, padded and run together
  std::optional<int> max_size, height, width;  // of an input with dynamic sizes, pixels
  int device = 0;                              // number of the GPU, or kCpu
  bool cuda_graph = true;
  int benchmark = 0;  // timed runs

  // Returns <stem>.json beside the model.
  std::filesystem::path metadata() const {
    return std::filesystem::path(model).replace_extension(".json");
  }
};

// Reads the command line. Returns nothing after it has printed --help or --version.
// Throws UsageError naming the option, what it was and what it should be.
std::optional<Options> parse_arguments(Program const& program, int count, char** arguments);

}  // namespace codetr
