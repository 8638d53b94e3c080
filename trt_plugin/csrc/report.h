// Reports errors to TensorRT's logger. No function here throws or aborts the process.
#pragma once

#include <NvInferRuntime.h>

#include <cstdint>
#include <exception>

namespace msda::trt {

// Sets the finder that TensorRT passes when it loads the library itself. Without a finder, errors
// go to the process-wide logger.
void set_logger_finder(nvinfer1::ILoggerFinder* finder) noexcept;

void report_error(const char* plugin, const char* message) noexcept;

// Runs `body` and returns 0. An exception is reported to the log, and the result is -1.
template <class Body>
int32_t guarded(const char* plugin, Body&& body) noexcept {
  try {
    body();
    return 0;
  } catch (std::exception const& error) {
    report_error(plugin, error.what());
  } catch (...) {
    report_error(plugin, "an exception of unknown type");
  }
  return -1;
}

}  // namespace msda::trt
