// What lies beside an engine as <engine>.json: see trt_plugin/metadata.py, which writes it.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "postprocess.h"
#include "preprocess.h"
#include "sizes.h"

namespace codetr {

struct TensorDescription {
  std::string name;
  std::vector<int64_t> shape;  // -1 for a size decided at run time
};

// Of an input with a size decided at run time: its smallest, usual and largest shape.
struct Profile {
  std::vector<int64_t> min, opt, max;
};

struct Metadata {
  std::string description;  // model, TensorRT's version, GPU and precision in words
  std::vector<TensorDescription> inputs, outputs;
  std::vector<std::string> class_names;
  Normalisation normalisation;
  std::map<std::string, Profile> profiles;  // of each input with a size of -1
  InputSizes sizes;
  Nms nms;
  bool nms_in_graph = false;

  // Throws UsageError naming file and field.
  static Metadata load(std::filesystem::path const& path);

  // Throws std::runtime_error naming the tensor if these tensors are not those described: then this
  // is the metadata of another file.
  void check_tensors(std::filesystem::path const& path,
                     std::vector<TensorDescription> const& found_inputs,
                     std::vector<TensorDescription> const& found_outputs) const;

  // Throws std::runtime_error naming the input if an engine's profile of it is not the one
  // described.
  void check_profile(std::filesystem::path const& path, std::string const& input,
                     Profile const& found) const;
};

// "[1, 3, ?]" for 1, 3, -1.
std::string format_shape(std::vector<int64_t> const& shape);

}  // namespace codetr
