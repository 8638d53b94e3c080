// TensorRT's messages: warnings go to stderr, errors are kept for the one line that they become.
#pragma once

#include <NvInferRuntime.h>

#include <string>

namespace codetr {

class TensorRtLog final : public nvinfer1::ILogger {
 public:
  void log(Severity severity, nvinfer1::AsciiChar const* message) noexcept override;

  // The errors since the last call, in one line.
  std::string take_errors();

 private:
  std::string errors_;
};

// The process's only one: TensorRT keeps the first that it is given.
TensorRtLog& tensorrt_log();

// Throws unless this program's headers and TensorRT's library, which it found when it was started,
// are of the same major version: others differ in the layout of what is called.
void check_tensorrt_version();

// "10.6.0", of the library.
std::string tensorrt_version();

}  // namespace codetr
