#include "report.h"

#include <atomic>
#include <cstdio>
#include <string>

namespace msda::trt {
namespace {

std::atomic<nvinfer1::ILoggerFinder*> logger_finder{nullptr};

using Severity = nvinfer1::ILogger::Severity;

// ILogger as libraries before TensorRT 11 lay it out; from 11 on it derives from
// IVersionedInterface.
class LoggerBefore11 {
 public:
  virtual void log(Severity severity, nvinfer1::AsciiChar const* message) noexcept = 0;

 protected:
  virtual ~LoggerBefore11() = default;
};

int32_t library_major() { return getInferLibVersion() / 10000; }

nvinfer1::ILogger* find_logger() {
  nvinfer1::ILoggerFinder* finder = logger_finder.load();
  if (finder != nullptr && headers_match_library()) {
    if (nvinfer1::ILogger* logger = finder->findLogger()) return logger;
  }
  return getLogger();
}

// False where there is no logger, or none that these headers can call.
bool log_error(nvinfer1::AsciiChar const* message) {
  nvinfer1::ILogger* logger = find_logger();
  if (logger == nullptr) return false;
  if (headers_match_library()) {
    logger->log(Severity::kERROR, message);
  } else if (NV_TENSORRT_MAJOR >= 11 && library_major() < 11) {
    reinterpret_cast<LoggerBefore11*>(logger)->log(Severity::kERROR, message);
  } else {
    return false;
  }
  return true;
}

}  // namespace

bool headers_match_library() noexcept { return library_major() == NV_TENSORRT_MAJOR; }

void set_logger_finder(nvinfer1::ILoggerFinder* finder) noexcept { logger_finder.store(finder); }

void report_error(const char* plugin, const char* message) noexcept {
  try {
    const std::string line = std::string("msda::") + plugin + ": " + message;
    if (!log_error(line.c_str())) std::fprintf(stderr, "%s\n", line.c_str());
  } catch (...) {
    std::fprintf(stderr, "msda::%s: %s\n", plugin, message);
  }
}

}  // namespace msda::trt
