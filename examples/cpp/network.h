// The interface of everything that runs the network: a TensorRT engine, a TorchScript module, or
// recorded outputs.
#pragma once

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "postprocess.h"
#include "preprocess.h"

namespace codetr {

// Times of the network alone, without the copies of inputs and outputs.
struct Samples {
  std::string how;  // "CUDA graph", "no CUDA graph"
  std::vector<float> milliseconds;
};

class Network {
 public:
  virtual ~Network() = default;

  // Runs the network. The metadata allows the input's shape.
  virtual Output run(Batch const& input) = 0;

  // Measures `runs` runs after a warm-up, once for each way to run this network.
  virtual std::vector<Samples> time(Batch const& input, int runs) = 0;
};

inline constexpr int kWarmupRuns = 20;

// Writes the inputs and outputs of a run into a folder, <name>_<run>.npy for run 0, 1, 2, ...:
// images, image_shapes, boxes, scores and labels, in the shapes of Batch and Output.
void dump_run(std::filesystem::path const& folder, size_t run, Batch const& input,
              Output const& output);

// Makes a network that returns the outputs of such a folder, one run after the other.
// Its run throws an exception if a file is missing or has another size.
std::unique_ptr<Network> replay(std::filesystem::path const& folder);

}  // namespace codetr
