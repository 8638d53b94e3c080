#include "report.h"

#include <atomic>
#include <cstdio>
#include <string>

#include "tensorrt_library.h"

namespace msda::trt {
namespace {

std::atomic<nvinfer1::ILoggerFinder*> logger_finder{nullptr};

}  // namespace

void set_logger_finder(nvinfer1::ILoggerFinder* finder) noexcept { logger_finder.store(finder); }

void report_error(const char* plugin, const char* message) noexcept {
  try {
    const std::string line = std::string("msda::") + plugin + ": " + message;
    if (!log_error(logger_finder.load(), line.c_str())) {
      std::fprintf(stderr, "%s\n", line.c_str());
    }
  } catch (...) {
    std::fprintf(stderr, "msda::%s: %s\n", plugin, message);
  }
}

}  // namespace msda::trt
