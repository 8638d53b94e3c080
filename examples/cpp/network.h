// The interface of everything that runs the network: a TensorRT engine, a TorchScript module, or
// recorded outputs.
#pragma once

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

}  // namespace codetr
