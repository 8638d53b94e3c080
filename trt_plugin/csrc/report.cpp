#include "report.h"

#include <atomic>
#include <cstdio>
#include <string>

namespace msda::trt {
namespace {

std::atomic<nvinfer1::ILoggerFinder*> logger_finder{nullptr};

nvinfer1::ILogger* find_logger() {
  if (nvinfer1::ILoggerFinder* finder = logger_finder.load()) {
    if (nvinfer1::ILogger* logger = finder->findLogger()) return logger;
  }
  return getLogger();
}

// Returns false without a logger, or without one that these headers can call.
bool log_error(nvinfer1::AsciiChar const* message) {
  if (!headers_match_library()) return false;
  nvinfer1::ILogger* logger = find_logger();
  if (logger == nullptr) return false;
  logger->log(nvinfer1::ILogger::Severity::kERROR, message);
  return true;
}

}  // namespace

bool headers_match_library() noexcept { return getInferLibVersion() / 10000 == NV_TENSORRT_MAJOR; }

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
