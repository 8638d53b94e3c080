// Files that appear whole or not at all.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

namespace codetr {

// The whole file. Throws std::runtime_error naming it.
std::vector<uint8_t> read_file(std::filesystem::path const& path);

// Writes to a temporary name in the same folder, which is made if it is missing, and renames.
// Throws std::runtime_error naming `path`.
void write_file(std::filesystem::path const& path, void const* data, size_t size);
void write_file(std::filesystem::path const& path, std::string const& text);

// A path or argument as text: what is no UTF-8 becomes U+FFFD, which terminals and JSON take.
std::string printable(std::string const& text);

}  // namespace codetr
