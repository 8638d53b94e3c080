// Where the shared memory of all kernels is: cuda.h makes it thread-local memory of this library,
// and there is no other in it.
#pragma once

#include <cstddef>

namespace emulator {

struct SharedMemory {
  void* start = nullptr;
  size_t bytes = 0;
};

SharedMemory shared_memory();

}  // namespace emulator
