// A network's inputs and outputs in a folder of .npy files: images [N, 3, H, W] float32,
// image_shapes [N, 2] int64, boxes [N, K, 4] float32, scores [N, K] float32, labels [N, K] int64.
#pragma once

#include <filesystem>
#include <memory>

#include "network.h"
#include "npy.h"

namespace codetr {

// Takes the outputs from a folder in place of a run: the next picture gets the next row. Needs no
// GPU. Throws UsageError if the files do not belong together or have too few rows.
std::unique_ptr<Network> replay(std::filesystem::path const& folder);

// Collects what goes into the network and what comes out, and writes it.
class Dump {
 public:
  // The first `count` pictures of a run.
  void add(Batch const& input, Output const& output, size_t count);
  void save(std::filesystem::path const& folder) const;

 private:
  Array<float> images_, boxes_, scores_;
  Array<int64_t> image_shapes_, labels_;
};

}  // namespace codetr
