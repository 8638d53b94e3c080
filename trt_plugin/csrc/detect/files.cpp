#include "files.h"

#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <memory>
#include <stdexcept>

#include "errors.h"

namespace codetr {
namespace {

struct Closer {
  void operator()(std::FILE* file) const { std::fclose(file); }
};
using File = std::unique_ptr<std::FILE, Closer>;

[[noreturn]] void fail(std::filesystem::path const& path, char const* what) {
  throw std::runtime_error(concat(path.string(), ": ", what, ": ", std::strerror(errno)));
}

// The length of the UTF-8 character at `at`, 0 if there is none.
size_t character_length(std::string const& text, size_t at) {
  const auto byte = [&](size_t i) -> unsigned {
    return i < text.size() ? static_cast<uint8_t>(text[i]) : 0;
  };
  const auto follows = [&](size_t i) { return (byte(i) & 0xc0) == 0x80; };
  const unsigned first = byte(at), second = byte(at + 1);
  if (first < 0x80) return 1;
  if (first >= 0xc2 && first <= 0xdf) return follows(at + 1) ? 2 : 0;
  if (first >= 0xe0 && first <= 0xef) {
    const bool bad = (first == 0xe0 && second < 0xa0) || (first == 0xed && second > 0x9f);
    return !bad && follows(at + 1) && follows(at + 2) ? 3 : 0;
  }
  if (first >= 0xf0 && first <= 0xf4) {
    const bool bad = (first == 0xf0 && second < 0x90) || (first == 0xf4 && second > 0x8f);
    return !bad && follows(at + 1) && follows(at + 2) && follows(at + 3) ? 4 : 0;
  }
  return 0;
}

}  // namespace

std::vector<uint8_t> read_file(std::filesystem::path const& path) {
  const File file(std::fopen(path.c_str(), "rb"));
  if (!file) fail(path, "cannot be read");
  std::vector<uint8_t> content;
  std::error_code unknown;
  const auto expected = std::filesystem::file_size(path, unknown);
  content.resize(unknown ? 0 : expected);
  size_t count = content.empty() ? 0 : std::fread(content.data(), 1, content.size(), file.get());
  content.resize(count);
  uint8_t chunk[65536];  // a pipe does not tell its size
  while ((count = std::fread(chunk, 1, sizeof(chunk), file.get())) > 0) {
    content.insert(content.end(), chunk, chunk + count);
  }
  if (std::ferror(file.get())) fail(path, "cannot be read");
  return content;
}

void write_file(std::filesystem::path const& path, void const* data, size_t size) {
  const std::filesystem::path folder = path.parent_path();
  std::error_code error;
  if (!folder.empty()) std::filesystem::create_directories(folder, error);
  const std::string name = concat(".", path.filename().string(), ".", ::getpid(), ".partial");
  const std::filesystem::path temporary = folder / name;
  File file(std::fopen(temporary.c_str(), "wb"));
  if (!file) fail(path, "cannot be written");
  const bool written = std::fwrite(data, 1, size, file.get()) == size;
  if (std::fclose(file.release()) != 0 || !written) {
    const int reason = errno;
    std::remove(temporary.c_str());
    errno = reason;
    fail(path, "cannot be written");
  }
  if (std::rename(temporary.c_str(), path.c_str()) != 0) {
    const int reason = errno;
    std::remove(temporary.c_str());
    errno = reason;
    fail(path, "cannot be written");
  }
}

void write_file(std::filesystem::path const& path, std::string const& text) {
  write_file(path, text.data(), text.size());
}

std::string printable(std::string const& text) {
  std::string result;
  for (size_t at = 0; at < text.size();) {
    const size_t length = character_length(text, at);
    result += length == 0 ? std::string("\xef\xbf\xbd") : text.substr(at, length);
    at += length == 0 ? 1 : length;
  }
  return result;
}

}  // namespace codetr
