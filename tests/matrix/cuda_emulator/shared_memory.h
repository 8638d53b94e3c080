// Where the shared memory of all kernels is: cuda.h makes it thread-local memory of this library,
// and there is no other in it. Included by emulator.cpp alone.
#pragma once

#include <link.h>

#include <cstddef>
#include <cstdlib>

namespace emulator {

struct SharedMemory {
  void* start = nullptr;
  size_t bytes = 0;
};

inline thread_local char thread_local_marker;

inline int find_shared_memory(dl_phdr_info* module, size_t, void* result) {
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

inline SharedMemory shared_memory() {
  thread_local_marker = 0;  // the first access allocates
  SharedMemory result;
  if (!dl_iterate_phdr(find_shared_memory, &result)) std::abort();
  return result;
}

}  // namespace emulator
