// TensorRT's library: its messages, its version, its plugins.
#pragma once

#include <NvInferRuntime.h>

#include <string>
#include <vector>

namespace codetr {

// Sends warnings to stderr and keeps errors for the line that reports them.
class TensorRtLog final : public nvinfer1::ILogger {
 public:
  void log(Severity severity, nvinfer1::AsciiChar const* message) noexcept override;

  // Returns the errors since the last call.
  std::string take_errors();

 private:
  std::string errors_;
};

// Returns the process's only log: TensorRT keeps the first log that it is given.
TensorRtLog& tensorrt_log();

// Returns the library's version, such as "10.6.0".
std::string tensorrt_version();

// Loads plugin libraries. Without any, it loads $MSDA_TRT_PLUGIN, or else libmsda_trt_plugin.so
// beside the program.
//
// Returns "; <reason>" if no library was given and none was found, which only matters to engines
// with plugins, else "". Throws std::runtime_error if a library cannot be loaded.
std::string load_plugins(std::vector<std::string> libraries);

}  // namespace codetr
