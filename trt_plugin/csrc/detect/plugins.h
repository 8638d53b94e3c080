// Registers the plugins that an engine may need with TensorRT.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace codetr {

// Loads the libraries given, or else this project's: $MSDA_TRT_PLUGIN, or libmsda_trt_plugin.so
// beside the program. Throws std::runtime_error if one cannot be loaded.
//
// Returns why there is no library where none was given: an engine without plugins needs none. Empty
// if all is well.
std::string load_plugins(std::vector<std::filesystem::path> const& libraries);

}  // namespace codetr
