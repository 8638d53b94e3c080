// Errors on their way to TensorRT's logger. Nothing here throws, and nothing aborts the process.
#pragma once

#include <NvInferRuntime.h>

#include <cstdint>
#include <exception>

namespace msda::trt {

// The layouts in memory of the registry, the logger finder and the logger change between major
// versions of TensorRT, those of the plugin interfaces do not. A library built with the headers of
// one version also serves another, but then has to do without these: its errors go to stderr.
bool headers_match_library() noexcept;

// TensorRT gives the finder when it loads the library itself; without one the process-wide logger
// is used.
void set_logger_finder(nvinfer1::ILoggerFinder* finder) noexcept;

void report_error(const char* plugin, const char* message) noexcept;

// Runs `body`; an exception becomes an error in the log and the result -1, else the result is 0.
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
