#include "messages.h"

#include <cxxabi.h>
#include <dlfcn.h>

#include <cstdlib>
#include <cstring>
#include <memory>

namespace emulator {

const char* name(Operation operation) {
  switch (operation) {
    case Operation::kNone:
      return "nothing";
    case Operation::kShuffle:
      return "a shuffle";
    case Operation::kBallot:
      return "__ballot_sync";
    case Operation::kAll:
      return "__all_sync";
    case Operation::kAny:
      return "__any_sync";
    case Operation::kSyncwarp:
      return "__syncwarp";
    case Operation::kSyncthreads:
      return "__syncthreads";
  }
  return "?";
}

std::string coordinates(unsigned x, unsigned y, unsigned z, const dim3& size) {
  if (size.y == 1 && size.z == 1) return std::to_string(x);
  return "(" + std::to_string(x) + ", " + std::to_string(y) + ", " + std::to_string(z) + ")";
}

std::string ranges(const std::vector<int>& numbers) {
  std::string text;
  for (size_t i = 0; i < numbers.size();) {
    size_t last = i;
    while (last + 1 < numbers.size() && numbers[last + 1] == numbers[last] + 1) ++last;
    if (!text.empty()) text += ", ";
    text += std::to_string(numbers[i]);
    if (last > i) text += "-" + std::to_string(numbers[last]);
    i = last + 1;
  }
  return text;
}

std::string function_name(const void* function) {
  Dl_info info;
  // A kernel of internal linkage has no name here, and what is next to it has.
  if (!dladdr(function, &info) || info.dli_saddr != function) return "a kernel";
  int status = 0;
  const std::unique_ptr<char, void (*)(void*)> demangled(
      abi::__cxa_demangle(info.dli_sname, nullptr, nullptr, &status), std::free);
  std::string text = status == 0 ? demangled.get() : info.dli_sname;
  if (const size_t space = text.find("void "); space == 0) text.erase(0, 5);
  return text.substr(0, text.rfind('('));
}

const char* file_name(Site site) {
  const char* const slash = std::strrchr(site.file, '/');
  return slash ? slash + 1 : site.file;
}

}  // namespace emulator
