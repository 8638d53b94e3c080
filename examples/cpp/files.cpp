#include "files.h"

#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <fstream>
#include <iterator>

#include "errors.h"

namespace codetr {

std::vector<uint8_t> read_file(std::filesystem::path const& path) {
  std::ifstream file(path, std::ios::binary);
  std::vector<uint8_t> content;
  std::error_code unknown;
  const auto size = std::filesystem::file_size(path, unknown);
  content.resize(unknown ? 0 : size);
  file.read(reinterpret_cast<char*>(content.data()), static_cast<std::streamsize>(content.size()));
  if (!file) throw std::runtime_error(concat(path.string(), ": cannot be read"));
  return content;
}

void write_file(std::filesystem::path const& path, std::string_view content) {
  std::error_code error;
  if (path.has_parent_path()) std::filesystem::create_directories(path.parent_path(), error);
  std::filesystem::path partial = path;
  partial += concat(".", ::getpid(), ".partial");
  std::ofstream file(partial, std::ios::binary);
  file.write(content.data(), static_cast<std::streamsize>(content.size()));
  file.close();
  if (file) std::filesystem::rename(partial, path, error);
  if (file && !error) return;
  const std::string reason = error ? error.message() : std::strerror(errno);
  std::filesystem::remove(partial, error);
  throw std::runtime_error(concat(path.string(), ": cannot be written: ", reason));
}

}  // namespace codetr
