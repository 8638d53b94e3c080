// Errors, which end the program with one line on stderr; whole files, read and written.
#pragma once

#include <filesystem>
#include <fstream>
#include <sstream>
#include <stdexcept>
#include <string>

namespace codetr {

namespace fs = std::filesystem;

// A wrong argument or input file; exit status 2. Any other exception gives 1.
struct UsageError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// Returns all parts, printed one after the other.
template <class... Parts>
std::string concat(Parts const&... parts) {
  std::ostringstream stream;
  (stream << ... << parts);
  return stream.str();
}

// Reads a file. Throws an exception that names it.
inline std::string read_file(fs::path const& path) {
  std::string content(fs::file_size(path), '\0');
  std::ifstream file(path, std::ios::binary);
  file.read(content.data(), static_cast<std::streamsize>(content.size()));
  if (!file) throw std::runtime_error(concat(path.string(), ": cannot be read"));
  return content;
}

// Writes a file, which appears whole or not at all; makes its folder if it is missing.
// Throws an exception that names the file or the folder.
inline void write_file(fs::path const& path, std::string const& content) {
  if (path.has_parent_path()) fs::create_directories(path.parent_path());
  fs::path partial = path;
  partial += ".partial";
  std::ofstream file(partial, std::ios::binary);
  file.write(content.data(), static_cast<std::streamsize>(content.size()));
  file.close();
  if (!file) {
    fs::remove(partial);
    throw std::runtime_error(concat(path.string(), ": cannot be written"));
  }
  fs::rename(partial, path);
}

}  // namespace codetr
