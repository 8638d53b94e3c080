// Tensors between pages that nothing may touch, for kernels to read and write.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace emulator {

// A copy of a tensor whose last byte is the last of a page (or nearly: addresses keep their
// distance from a multiple of 16), or whose first byte is the first of one; the pages beside it
// cannot be read or written. Inputs cannot be written either. What lies between tensor and page is
// garbage to the reader, and written() tells whether it was written to.
class GuardedTensor {
 public:
  enum class Access { kRead, kWrite };

  // `data` is the caller's memory, which must outlive the copy; null for zeros that nobody wants
  // back.
  GuardedTensor(const char* name, void* data, size_t bytes, Access access, bool at_start);
  ~GuardedTensor();
  GuardedTensor(const GuardedTensor&) = delete;
  GuardedTensor& operator=(const GuardedTensor&) = delete;

  void* data() const { return copy_; }

  // After the kernel: copies back what it wrote. Returns what is wrong, or an empty string.
  std::string finish();

  // "4 bytes after the end of value, which has 1024 bytes", for an address in or near a tensor;
  // else an empty string.
  static std::string describe(const void* address);

 private:
  const char* const name_;
  void* const source_;
  const size_t bytes_;
  const Access access_;
  char* pages_ = nullptr;  // the first page is a guard, and so is the last
  size_t pages_bytes_ = 0;
  char* copy_ = nullptr;
};

}  // namespace emulator
