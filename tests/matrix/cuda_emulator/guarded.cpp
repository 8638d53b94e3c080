#include "guarded.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <new>
#include <vector>

namespace emulator {
namespace {

constexpr unsigned char kGarbage = 0xff;  // NaN in every floating-point type

std::vector<const GuardedTensor*> tensors;

}  // namespace

GuardedTensor::GuardedTensor(const char* name, void* data, size_t bytes, Access access,
                             bool at_start)
    : name_(name), source_(data), bytes_(bytes), access_(access) {
  const size_t page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  const size_t misaligned = reinterpret_cast<uintptr_t>(data) % 16;
  const size_t used = (misaligned + bytes + page - 1) / page * page;
  pages_bytes_ = used + 2 * page;
  void* const pages = mmap(nullptr, pages_bytes_, PROT_READ | PROT_WRITE,
                           MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (pages == MAP_FAILED) throw std::bad_alloc();
  pages_ = static_cast<char*>(pages);
  std::memset(pages_ + page, kGarbage, used);
  copy_ = pages_ + page + misaligned;
  if (!at_start) copy_ += (used - misaligned - bytes) / 16 * 16;
  if (data == nullptr) {
    std::memset(copy_, 0, bytes);
  } else if (bytes > 0) {
    std::memcpy(copy_, data, bytes);
  }
  mprotect(pages_, page, PROT_NONE);
  mprotect(pages_ + page + used, page, PROT_NONE);
  if (access == Access::kRead) mprotect(pages_ + page, used, PROT_READ);
  tensors.push_back(this);
}

GuardedTensor::~GuardedTensor() {
  tensors.erase(std::find(tensors.begin(), tensors.end(), this));
  munmap(pages_, pages_bytes_);
}

std::string GuardedTensor::finish() {
  if (access_ == Access::kRead) return {};
  const char* const first = pages_ + sysconf(_SC_PAGESIZE);
  const char* const last = pages_ + pages_bytes_ - sysconf(_SC_PAGESIZE);
  const auto written = [](char byte) { return static_cast<unsigned char>(byte) != kGarbage; };
  const char* const before = std::find_if(first, const_cast<const char*>(copy_), written);
  const char* const after = std::find_if(const_cast<const char*>(copy_) + bytes_, last, written);
  if (source_ && bytes_ > 0) std::memcpy(source_, copy_, bytes_);
  if (before != copy_) return "a thread wrote " + describe(before);
  if (after != last) return "a thread wrote " + describe(after);
  return {};
}

std::string GuardedTensor::describe(const void* address) {
  const char* const byte = static_cast<const char*>(address);
  for (const GuardedTensor* tensor : tensors) {
    if (byte < tensor->pages_ || byte >= tensor->pages_ + tensor->pages_bytes_) continue;
    const char* const end = tensor->copy_ + tensor->bytes_;
    std::string place;
    if (byte < tensor->copy_) {
      place = std::to_string(tensor->copy_ - byte) + " bytes before the start of ";
    } else if (byte >= end) {
      place = std::to_string(byte - end) + " bytes after the end of ";
    } else {
      place = "byte " + std::to_string(byte - tensor->copy_) + " of ";
    }
    place += tensor->name_;
    if (tensor->access_ == Access::kRead) place += ", an input";
    return place + ", which has " + std::to_string(tensor->bytes_) + " bytes";
  }
  return {};
}

}  // namespace emulator
