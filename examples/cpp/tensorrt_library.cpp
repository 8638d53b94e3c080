#include "tensorrt_library.h"

#include <dlfcn.h>

#include <cstdlib>
#include <filesystem>
#include <iostream>
#include <utility>

#include "errors.h"

namespace codetr {

void TensorRtLog::log(Severity severity, nvinfer1::AsciiChar const* message) noexcept {
  if (severity <= Severity::kERROR) {
    errors_ += concat(errors_.empty() ? "" : "; ", message);
  } else if (severity == Severity::kWARNING) {
    std::cerr << "warning: TensorRT: " << message << std::endl;
  }
}

std::string TensorRtLog::take_errors() { return std::exchange(errors_, ""); }

TensorRtLog& tensorrt_log() {
  static TensorRtLog log;
  return log;
}

std::string tensorrt_version() {
  const int version = getInferLibVersion();  // 100600 for 10.6.0
  return concat(version / 10000, ".", version / 100 % 100, ".", version % 100);
}

std::string load_plugins(std::vector<std::string> libraries) {
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
    if (dlopen(library.c_str(), RTLD_NOW) == nullptr) {
      throw std::runtime_error(concat("the plugin library cannot be loaded: ", dlerror()));
    }
    if (getPluginRegistry()->loadLibrary(library.c_str()) == nullptr) {
      throw std::runtime_error(
          concat("the plugin library ", library, ": ", tensorrt_log().take_errors()));
    }
  }
  return "";
}

}  // namespace codetr
