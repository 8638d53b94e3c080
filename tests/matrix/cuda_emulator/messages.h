// Words for messages. Included by emulator.cpp alone.
#pragma once

#include <cxxabi.h>
#include <dlfcn.h>

#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>

#include "emulator.h"

namespace emulator {

inline const char* name(Operation operation) {
  static const char* const kNames[] = {"nothing",    "a shuffle",  "__ballot_sync", "__all_sync",
                                       "__any_sync", "__syncwarp", "__syncthreads"};
  return kNames[static_cast<int>(operation)];
}

// The demangled name of a function that the library exports, without its arguments.
inline std::string function_name(const void* function) {
  Dl_info info;
  // A kernel of internal linkage has no name here, and what is next to it has.
  if (!dladdr(function, &info) || info.dli_saddr != function) return "a kernel";
  int status = 0;
  const std::unique_ptr<char, void (*)(void*)> demangled(
      abi::__cxa_demangle(info.dli_sname, nullptr, nullptr, &status), std::free);
  std::string text = status == 0 ? demangled.get() : info.dli_sname;
  if (text.rfind("void ", 0) == 0) text.erase(0, 5);
  return text.substr(0, text.rfind('('));
}

template <typename Triple>
std::string coordinates(const Triple& x) {
  return "(" + std::to_string(x.x) + ", " + std::to_string(x.y) + ", " + std::to_string(x.z) + ")";
}

}  // namespace emulator
