#include "tensorrt_log.h"

#include <iostream>

#include "errors.h"

namespace codetr {

void TensorRtLog::log(Severity severity, nvinfer1::AsciiChar const* message) noexcept try {
  if (severity == Severity::kERROR || severity == Severity::kINTERNAL_ERROR) {
    errors_ += concat(errors_.empty() ? "" : "; ", message);
  } else if (severity == Severity::kWARNING) {
    std::cerr << "warning: TensorRT: " << message << std::endl;
  }
} catch (...) {
  // A message is lost; the call that it is about fails all the same.
}

std::string TensorRtLog::take_errors() {
  std::string taken;
  std::swap(taken, errors_);
  return taken.empty() ? "TensorRT gave no reason" : taken;
}

TensorRtLog& tensorrt_log() {
  static TensorRtLog log;
  return log;
}

void check_tensorrt_version() {
  if (getInferLibVersion() / 10000 == NV_TENSORRT_MAJOR) return;
  throw std::runtime_error(
      concat("this program was built with the headers of TensorRT ", NV_TENSORRT_MAJOR,
             " and runs with the library of TensorRT ", tensorrt_version(),
             ": build it again with the headers of that version (cmake -DTENSORRT_HEADERS=...)"));
}

std::string tensorrt_version() {
  const int version = getInferLibVersion();  // 100600 for 10.6.0
  return concat(version / 10000, ".", version / 100 % 100, ".", version % 100);
}

}  // namespace codetr
