// What lies beside an engine as <engine>.json: see trt_plugin/metadata.py, which writes it.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "postprocess.h"
#include "preprocess.h"

namespace codetr {

struct TensorDescription {
  std::string name;
  std::vector<int64_t> shape;  // -1 for a size decided at run time
};

struct Metadata {
  std::string description;  // model, TensorRT's version, GPU and precision in words
  std::vector<TensorDescription> inputs, outputs;
  std::vector<std::string> class_names;
  Normalisation normalisation;
  int height = 0, width = 0;  // of the network's input
  int batch = 0;              // N of the network's input
  Nms nms;
  bool nms_in_graph = false;

  // Throws UsageError naming file and field.
  static Metadata load(std::filesystem::path const& path);

  // Throws std::runtime_error naming the tensor if these tensors are not those described: then this
  // is the metadata of another file.
  void check_tensors(std::filesystem::path const& path,
                     std::vector<TensorDescription> const& found_inputs,
                     std::vector<TensorDescription> const& found_outputs) const;
};

// "[1, 3, ?]" for 1, 3, -1.
std::string format_shape(std::vector<int64_t> const& shape);

}  // namespace codetr
