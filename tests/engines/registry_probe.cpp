// Loads the plugin library into the registry of a TensorRT library, in a process that links
// neither:
//   registry_probe NVINFER PLUGINS WAY...
// WAY is "dlopen" or "loadLibrary". Prints the version of TensorRT, after each way the plugins of
// the namespace msda, and then what a plugin with a wrong field logs.
//
// The headers are of one major version, and the library may be of another. The functions of the
// registry are therefore called by their places in TensorRT 10 and 11.
#include <NvInferRuntime.h>
#include <dlfcn.h>

#include <cstdio>
#include <stdexcept>
#include <string>

using namespace nvinfer1;

namespace {

void print(char const* message) { std::printf("logged: %s\n", message); }

struct Logger10 {
  virtual void log(int32_t, char const* message) noexcept { print(message); }
};
struct LoggerFinder10 {
  virtual Logger10* findLogger() { return &logger; }
  Logger10 logger;
};

// The headers' own. For a library of TensorRT 11 they must be of TensorRT 11.
struct Logger : ILogger {
  void log(Severity, char const* message) noexcept override { print(message); }
};
struct LoggerFinder : ILoggerFinder {
  ILogger* findLogger() override { return &logger; }
  Logger logger;
};

void* open(char const* path) {
  void* library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) throw std::runtime_error(dlerror());
  return library;
}

template <class Function>
Function* exported(void* library, char const* name) {
  return reinterpret_cast<Function*>(dlsym(library, name));
}

template <class Function>
Function* virtual_function(void* object, int place) {
  return (*static_cast<Function***>(object))[place];
}

IPluginCreatorV3One* print_plugins(void* registry, int get_all_creators) {
  using GetAllCreators = IPluginCreatorInterface* const*(void*, int32_t*);
  int32_t count = 0;
  auto* all = virtual_function<GetAllCreators>(registry, get_all_creators)(registry, &count);
  IPluginCreatorV3One* last = nullptr;
  std::printf("plugins:");
  for (int32_t i = 0; i < count; ++i) {
    if (all[i]->getInterfaceInfo().kind != std::string("PLUGIN CREATOR_V3ONE")) continue;
    auto* creator = static_cast<IPluginCreatorV3One*>(all[i]);
    if (creator->getPluginNamespace() != std::string("msda")) continue;
    std::printf(" %s:%s", creator->getPluginName(), creator->getPluginVersion());
    last = creator;
  }
  std::printf("\n");
  return last;
}

}  // namespace

int main(int count, char** arguments) {
  void* nvinfer = open(arguments[1]);
  const int version = exported<int()>(nvinfer, "getInferLibVersion")();
  std::printf("version %d.%d\n", version / 10000, version / 100 % 100);
  void* registry = exported<void*()>(nvinfer, "getPluginRegistry")();
  const bool is_10 = version / 10000 == 10;
  IPluginCreatorV3One* creator = nullptr;
  for (int i = 3; i < count; ++i) {
    if (arguments[i] == std::string("dlopen")) {
      open(arguments[2]);
    } else {
      using LoadLibrary = void*(void*, char const*);
      virtual_function<LoadLibrary>(registry, is_10 ? 10 : 6)(registry, arguments[2]);
    }
    creator = print_plugins(registry, is_10 ? 13 : 9);
  }

  LoggerFinder10 finder_10;
  LoggerFinder finder;
  void* chosen = is_10 ? static_cast<void*>(&finder_10) : &finder;
  exported<void(void*)>(open(arguments[2]), "setLoggerFinder")(chosen);
  PluginField wrong{"wrong"};
  PluginFieldCollection fields{1, &wrong};
  return creator->createPlugin("probe", &fields, TensorRTPhase::kBUILD) == nullptr ? 0 : 1;
}
