// The interface of everything that runs the network: a TensorRT engine, a TorchScript module, or
// recorded outputs.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "preprocess.h"

namespace codetr {

// K rows for each of N pictures; a row is a detection or padding.
struct Output {
  size_t rows = 0;              // K
  std::vector<float> boxes;     // [N, K, 4]: x1 y1 x2 y2 in pixels of the resized picture
  std::vector<float> scores;    // [N, K]
  std::vector<int64_t> labels;  // [N, K]; -1 for padding
};

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

}  // namespace codetr
