#include "tensorrt_library.h"

#include <dlfcn.h>

#include <cstdint>

#include "plugin.h"

namespace msda::trt {
namespace {

constexpr char const* kSonames[] = {"libnvinfer.so.11", "libnvinfer.so.10"};

// Places of virtual functions in their objects' tables, which every version of a major has. Source:
// NvInferRuntimeCommon.h and NvInferRuntime.h of TensorRT 10.6 and 11.4.
struct Places {
  int32_t register_creator, deregister_creator, find_logger, log;
};
constexpr Places kPlaces10{12, 15, 0, 0};
constexpr Places kPlaces11{8, 11, 4, 4};

// Returns TensorRT's library: the one that the process has, or else one that the loader finds.
// Programs may open the plugins first.
void* open_library() noexcept {
  for (const int mode : {RTLD_LAZY | RTLD_NOLOAD, RTLD_LAZY}) {
    for (char const* soname : kSonames) {
      if (void* library = dlopen(soname, mode)) return library;
    }
  }
  return nullptr;
}

// Calls a function that the library exports without arguments. Returns 0 without a library.
template <class Result>
Result call_exported(char const* name) noexcept {
  void* const library = open_library();
  void* const function = library == nullptr ? nullptr : dlsym(library, name);
  return function == nullptr ? Result{} : reinterpret_cast<Result (*)() noexcept>(function)();
}

// Returns null without a library, or for a major version that is not known.
Places const* places() noexcept {
  switch (call_exported<int32_t>("getInferLibVersion") / 10000) {
    case 10:
      return &kPlaces10;
    case 11:
      return &kPlaces11;
    default:
      return nullptr;
  }
}

// Calls the virtual function at a place, as compilers do by the Itanium C++ ABI.
template <class Result, class... Arguments>
Result call_virtual(void* object, int32_t place, Arguments... arguments) noexcept {
  using Function = Result (*)(void*, Arguments...);
  return (*static_cast<Function**>(object))[place](object, arguments...);
}

}  // namespace

bool register_creator(nvinfer1::IPluginCreatorInterface& creator) noexcept {
  Places const* const at = places();
  void* const registry = call_exported<void*>("getPluginRegistry");
  return at != nullptr && registry != nullptr &&
         call_virtual<bool>(registry, at->register_creator, &creator, kNamespace);
}

void deregister_creator(nvinfer1::IPluginCreatorInterface const& creator) noexcept {
  Places const* const at = places();
  void* const registry = call_exported<void*>("getPluginRegistry");
  if (at == nullptr || registry == nullptr) return;
  call_virtual<bool>(registry, at->deregister_creator, &creator);
}

bool log_error(nvinfer1::ILoggerFinder* finder, char const* message) noexcept {
  Places const* const at = places();
  if (at == nullptr) return false;
  void* logger = finder == nullptr ? nullptr : call_virtual<void*>(finder, at->find_logger);
  if (logger == nullptr) logger = call_exported<void*>("getLogger");
  if (logger == nullptr) return false;
  call_virtual<void>(logger, at->log, nvinfer1::ILogger::Severity::kERROR, message);
  return true;
}

}  // namespace msda::trt
