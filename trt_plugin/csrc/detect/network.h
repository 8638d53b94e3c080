// What runs the network: a TensorRT engine, a TorchScript module, or outputs that were kept.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "preprocess.h"

namespace codetr {

// For each of N pictures K rows, detections or padding; N at least the input's own pictures.
struct Output {
  size_t rows = 0;              // K
  std::vector<float> boxes;     // [N, K, 4]: x1 y1 x2 y2 in pixels of the resized picture
  std::vector<float> scores;    // [N, K]
  std::vector<int64_t> labels;  // [N, K]
};

// GPU times of the network alone, without the copies of inputs and outputs.
struct Samples {
  std::string how;  // "CUDA graph", "no CUDA graph"
  std::vector<float> milliseconds;
};

class Network {
 public:
  virtual ~Network() = default;

  // The input's shape is one of those that the metadata allows.
  virtual Output run(Batch const& input) = 0;

  // Measures `runs` runs after a warm-up, in each way that this network can be run.
  virtual std::vector<Samples> time(Batch const& input, int runs) = 0;
};

inline constexpr int kWarmupRuns = 20;

}  // namespace codetr
