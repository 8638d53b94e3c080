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

// The optimization profile of a dynamic input: its smallest, usual and largest shape.
struct Profile {
  Shape min, opt, max;
};

struct Metadata {
  std::string description;                  // model, TensorRT's version, GPU and precision in words
  std::map<std::string, Shape> tensors;     // all inputs and outputs
  std::map<std::string, Profile> profiles;  // each input with a size of -1
  std::vector<std::string> class_names;
  Normalisation normalisation;
  InputSizes sizes;
  Nms nms;
  bool nms_in_graph = false;  // the network suppresses by itself

  // Throws UsageError naming file and field.
  static Metadata load(std::filesystem::path const& path);

  // Throws std::runtime_error naming the first tensor or profile that differs from the engine's,
  // which means that this metadata belongs to another engine.
  void check_engine(std::filesystem::path const& path, std::map<std::string, Shape> const& found,
                    std::map<std::string, Profile> const& found_profiles) const;
};

// Returns "[1, 3, ?]" for 1, 3, -1.
std::string format_shape(Shape const& shape);

}  // namespace codetr
