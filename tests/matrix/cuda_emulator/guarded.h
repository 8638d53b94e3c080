// Tensors between pages that nothing may touch, for kernels to read and write.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace emulator {

// A copy of a tensor that ends at the end of a page, or begins at the start of one; addresses keep
// their distance from a multiple of 16. The pages beside it cannot be read or written, and inputs
// cannot be written. The bytes between tensor and page are garbage; finish() tells whether a thread
// wrote to them.
class GuardedTensor {
 public:
  enum class Access { kRead, kWrite };

  // `data` is the caller's memory, which must outlive the copy; null: zeros without a source.
  GuardedTensor(const char* name, void* data, size_t bytes, Access access, bool at_start);
  ~GuardedTensor();
  GuardedTensor(const GuardedTensor&) = delete;
  GuardedTensor& operator=(const GuardedTensor&) = delete;

  void* data() const { return copy_; }

  // After the kernel: copies its output back. Returns what is wrong, or an empty string.
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
