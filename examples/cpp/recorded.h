// A network's inputs and outputs in a folder of .npy files: --dump writes them, --replay reads
// them.
//
//   images.npy        float32 [N, 3, H, W]; H and W are those of the largest run, the rest is zero
//   input_shapes.npy  int64 [N, 3]: batch, height and width of the run that a picture was in
//   image_shapes.npy  int64 [N, 2]: height and width of the resized picture
//   boxes.npy         float32 [N, K, 4]
//   scores.npy        float32 [N, K]
//   labels.npy        int64 [N, K]
#pragma once

#include <filesystem>
#include <memory>

#include "network.h"

namespace codetr {

// Makes a network that returns the outputs of a folder, the next row for the next picture.
// Throws UsageError if the files do not belong together or have too few rows.
std::unique_ptr<Network> replay(std::filesystem::path const& folder);

// Collects inputs and outputs, and writes them.
class Dump {
 public:
  void add(Batch const& input, Output const& output);
  void save(std::filesystem::path const& folder) const;

 private:
  // One run; only the rows of its own pictures count.
  struct Run {
    Batch input;
    Output output;
  };
  std::vector<Run> runs_;
};

}  // namespace codetr
