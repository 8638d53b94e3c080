// Runs a TensorRT engine: one stream, pinned memory, and a CUDA graph for each input shape.
#pragma once

#include <memory>

#include "arguments.h"
#include "metadata.h"
#include "network.h"

namespace codetr {

// Opens the engine that the options name. Throws std::runtime_error in one line if it is no engine,
// truncated, of another TensorRT version, for another GPU, lacks a plugin or a GPU, or differs from
// its metadata.
std::unique_ptr<Network> open_engine(Options const& options, Metadata const& metadata);

}  // namespace codetr
