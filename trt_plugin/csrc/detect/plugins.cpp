#include "plugins.h"

#include <NvInferRuntime.h>
#include <dlfcn.h>

#include <cstdlib>

#include "errors.h"
#include "tensorrt_log.h"

namespace codetr {
namespace {

constexpr char kFileName[] = "libmsda_trt_plugin.so";
constexpr char kVariable[] = "MSDA_TRT_PLUGIN";

void load(std::filesystem::path const& library) {
  const auto fail = [&](std::string const& why) {
    throw std::runtime_error(
        concat("the plugin library ", library.string(), " cannot be loaded: ", why));
  };
  // First without TensorRT, which does not say why it cannot open a library. It stays open.
  if (dlopen(library.c_str(), RTLD_NOW) == nullptr) fail(dlerror());
  if (getPluginRegistry()->loadLibrary(library.c_str()) == nullptr) {
    fail(tensorrt_log().take_errors());
  }
}

}  // namespace

std::string load_plugins(std::vector<std::filesystem::path> const& libraries) {
  check_tensorrt_version();
  for (auto const& library : libraries) load(library);
  if (!libraries.empty()) return "";
  if (char const* chosen = std::getenv(kVariable); chosen != nullptr && *chosen != '\0') {
    load(chosen);
    return "";
  }
  std::error_code error;
  const auto program = std::filesystem::read_symlink("/proc/self/exe", error);
  const auto library = program.parent_path() / kFileName;
  if (!std::filesystem::exists(library, error)) {
    return concat("there is no ", library.string(), "; give --plugins or set $", kVariable);
  }
  load(library);
  return "";
}

}  // namespace codetr
