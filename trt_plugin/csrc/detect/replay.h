// A network's inputs and outputs in a folder of .npy files: images [N, 3, H, W] float32,
// image_shapes [N, 2] int64, boxes [N, K, 4] float32, scores [N, K] float32, labels [N, K] int64,
// and input_shapes [N, 3] int64: N, H and W of the run that a picture was in. These differ from run
// to run where the network's sizes are dynamic; images has the largest H and W then, the others
// zero right and below.
#pragma once

#include <filesystem>
#include <memory>

#include "network.h"
#include "npy.h"

namespace codetr {

// Takes the outputs from a folder in place of a run: the next picture gets the next row, and one
// that repeats another none. Needs no GPU. Throws UsageError if the files do not belong together or
// have too few rows.
std::unique_ptr<Network> replay(std::filesystem::path const& folder);

// Collects what goes into the network and what comes out, and writes it.
class Dump {
 public:
  // The pictures of a run, without those that repeat another.
  void add(Batch const& input, Output const& output);
  void save(std::filesystem::path const& folder) const;

 private:
  // [N, 3, H, W] of a run.
  struct Images {
    size_t count, height, width;
    std::vector<float> pixels;
  };
  Array<float> all_images() const;

  std::vector<Images> images_;
  Array<float> boxes_, scores_;
  Array<int64_t> image_shapes_, input_shapes_, labels_;
};

}  // namespace codetr
