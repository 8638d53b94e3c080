// The command line and the run of a program, independent of what runs the network.
#pragma once

#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "metadata.h"
#include "network.h"

namespace codetr {

struct Program {
  std::string name;
  std::string model_option;  // "--engine": the file with the network
  std::string versions;      // of what runs the network, for --version
  bool torch;                // whether it runs TorchScript modules, also on the CPU
};

inline constexpr int kCpu = -1;

struct Options {
  std::filesystem::path model;
  std::vector<std::string> pictures;
  std::optional<std::filesystem::path> out, json, dump, replay;
  std::string torchtrt;
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
};

// Reads the command line. Returns nothing after it has printed --help or --version.
// Throws UsageError naming the option, what it was and what it should be.
std::optional<Options> parse_arguments(Program const& program, int count, char** arguments);

using OpenNetwork = std::function<std::unique_ptr<Network>(Options const&, Metadata const&)>;

// Runs the command line and returns the exit status, which --help explains.
//   open: loads the network
int run_program(Program const& program, int count, char** arguments, OpenNetwork const& open);

}  // namespace codetr
