// TensorRT's library: its messages, its version, its plugins.
#pragma once

#include <NvInferRuntime.h>
#include <dlfcn.h>

#include <cstdlib>
#include <filesystem>
#include <iostream>
#include <string>
#include <utility>
#include <vector>

#include "files.h"
#include "gpu_input.h"

namespace codetr {

// Sends warnings to stderr and keeps errors for the line that reports them.
class TensorRtLog final : public nvinfer1::ILogger {
 public:
  void log(Severity severity, nvinfer1::AsciiChar const* message) noexcept override {
    if (severity <= Severity::kERROR) {
      errors_ += concat(errors_.empty() ? "" : "; ", message);
    } else if (severity == Severity::kWARNING) {
      std::cerr << "warning: TensorRT: " << message << std::endl;
    }
  }

  // Returns the errors since the last call.
  std::string take_errors() { return std::exchange(errors_, ""); }

 private:
  std::string errors_;
};

// Returns the process's only log: TensorRT keeps the first log that it is given.
inline TensorRtLog& tensorrt_log() {
  static TensorRtLog log;
  return log;
}

// Returns the library's version, such as "10.6.0".
inline std::string tensorrt_version() {
  const int version = getInferLibVersion();  // 100600 for 10.6.0
  return concat(version / 10000, ".", version / 100 % 100, ".", version % 100);
}

// Loads plugin libraries. Without any, it loads $MSDA_TRT_PLUGIN, or else libmsda_trt_plugin.so
// beside the program.
//   launch_input: set to the library's launcher of image input, if it has one
//
// Returns "; <reason>" if no library was given and none was found, which only matters to engines
// with plugins, else "". Throws std::runtime_error if a library cannot be loaded.
inline std::string load_plugins(std::vector<std::string> libraries,
                                LaunchInput* launch_input = nullptr) {
  char const* variable = std::getenv("MSDA_TRT_PLUGIN");
  if (libraries.empty() && variable != nullptr && *variable != '\0') libraries = {variable};
  if (libraries.empty()) {
    const auto program = std::filesystem::read_symlink("/proc/self/exe");
    const auto library = program.parent_path() / "libmsda_trt_plugin.so";
    if (!std::filesystem::exists(library)) {
      return concat("; there is no ", library.string(), "; give --plugins or set $MSDA_TRT_PLUGIN");
    }
    libraries = {library};
  }
  for (std::string const& library : libraries) {
    // TensorRT does not say why it cannot open a library; dlopen does. It stays open.
    void* const opened = dlopen(library.c_str(), RTLD_NOW);
    if (opened == nullptr) {
      throw std::runtime_error(concat("the plugin library cannot be loaded: ", dlerror()));
    }
    void* const launch = dlsym(opened, "msda_image_input");
    if (launch_input != nullptr && launch != nullptr) {
      *launch_input = reinterpret_cast<LaunchInput>(launch);
    }
    if (getPluginRegistry()->loadLibrary(library.c_str()) == nullptr) {
      throw std::runtime_error(
          concat("the plugin library ", library, ": ", tensorrt_log().take_errors()));
    }
  }
  return "";
}

}  // namespace codetr
