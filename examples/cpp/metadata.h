// The JSON file beside an exported network: what it detects and how its input is made.
#pragma once

#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "postprocess.h"
#include "preprocess.h"

namespace codetr {

using Shape = std::vector<int64_t>;  // -1 for a size that is decided at run time

struct Metadata {
  std::string description;               // model, TensorRT's version, GPU and precision in words
  std::map<std::string, Shape> tensors;  // all inputs and outputs
  std::vector<std::string> class_names;
  Normalisation normalisation;
  InputSizes sizes;
  Nms nms;
  bool nms_in_graph = false;  // the network suppresses by itself

  // Reads the file that an export has written. Throws UsageError naming file and field.
  static Metadata load(std::filesystem::path const& path);
};

// Returns "[1, 3, ?]" for 1, 3, -1.
std::string format_shape(Shape const& shape);

}  // namespace codetr
