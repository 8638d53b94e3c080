// Runs a TensorRT engine: a stream, pinned buffers, and a CUDA graph of its run in each shape.
#pragma once

#include <filesystem>
#include <memory>
#include <vector>

#include "metadata.h"
#include "network.h"

namespace codetr {

struct EngineOptions {
  std::filesystem::path path;      // its metadata is <stem>.json beside it
  std::filesystem::path metadata;  // for messages
  std::vector<std::filesystem::path> plugins;
  int device = 0;
  bool cuda_graph = true;
};

// Throws std::runtime_error in one line: not an engine, truncated or damaged, of another TensorRT
// version, for another GPU, a plugin missing, no GPU, other tensors or another profile than the
// metadata says.
std::unique_ptr<Network> open_engine(EngineOptions const& options, Metadata const& metadata);

}  // namespace codetr
