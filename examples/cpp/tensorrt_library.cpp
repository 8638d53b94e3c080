#include "tensorrt_library.h"

#include <dlfcn.h>

#include <cstdlib>
#include <filesystem>
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
  // The message is lost. The call that it reports fails by itself.
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

std::string tensorrt_version() {
  const int version = getInferLibVersion();  // 100600 for 10.6.0
  return concat(version / 10000, ".", version / 100 % 100, ".", version % 100);
}

std::string load_plugins(std::vector<std::string> libraries) {
  if (getInferLibVersion() / 10000 != NV_TENSORRT_MAJOR) {
    throw std::runtime_error(
        concat("this program was built with the headers of TensorRT ", NV_TENSORRT_MAJOR,
               " and runs with the library of TensorRT ", tensorrt_version(),
               ": build it again with the headers of that version (cmake -DTENSORRT_HEADERS=...)"));
  }
  char const* variable = std::getenv("MSDA_TRT_PLUGIN");
  if (libraries.empty() && variable != nullptr && *variable != '\0') libraries = {variable};
  if (libraries.empty()) {
    const auto program = std::filesystem::read_symlink("/proc/self/exe");
    const auto library = program.parent_path() / "libmsda_trt_plugin.so";
    if (!std::filesystem::exists(library)) {
      return concat("there is no ", library.string(), "; give --plugins or set $MSDA_TRT_PLUGIN");
    }
    libraries = {library};
  }
  for (std::string const& library : libraries) {
    // TensorRT does not say why it cannot open a library; dlopen does. It stays open.
    std::string reason;
    if (dlopen(library.c_str(), RTLD_NOW) == nullptr) {
      reason = dlerror();
    } else if (getPluginRegistry()->loadLibrary(library.c_str()) == nullptr) {
      reason = tensorrt_log().take_errors();
    }
    if (reason.empty()) continue;
    throw std::runtime_error(concat("the plugin library ", library, " cannot be loaded: ", reason));
  }
  return "";
}

}  // namespace codetr
