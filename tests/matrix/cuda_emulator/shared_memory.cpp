#include "shared_memory.h"

#include <link.h>

#include <cstdlib>

namespace emulator {
namespace {

thread_local char thread_local_marker;

int find_shared_memory(dl_phdr_info* module, size_t, void* result) {
  const char* const start = static_cast<const char*>(module->dlpi_tls_data);
  for (int i = 0; start && i < module->dlpi_phnum; ++i) {
    const auto& header = module->dlpi_phdr[i];
    if (header.p_type != PT_TLS) continue;
    if (&thread_local_marker < start || &thread_local_marker >= start + header.p_memsz) continue;
    *static_cast<SharedMemory*>(result) = {module->dlpi_tls_data, header.p_memsz};
    return 1;
  }
  return 0;
}

}  // namespace

SharedMemory shared_memory() {
  thread_local_marker = 0;  // the first access allocates
  SharedMemory result;
  if (!dl_iterate_phdr(find_shared_memory, &result)) std::abort();
  return result;
}

}  // namespace emulator
