// A network's inputs and outputs in a folder of .npy files, <name>_<run>.npy for run 0, 1, 2, ...:
// images, image_shapes, boxes, scores and labels, in the shapes of Batch and Output.
#pragma once

#include <filesystem>
#include <memory>

#include "network.h"

namespace codetr {

// Writes the inputs and outputs of a run.
void dump_run(std::filesystem::path const& folder, size_t run, Batch const& input,
              Output const& output);

// Makes a network that returns the outputs of a folder, one run after the other.
// Its run throws an exception if a file is missing or has another size.
std::unique_ptr<Network> replay(std::filesystem::path const& folder);

}  // namespace codetr
