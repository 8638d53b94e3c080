// Whole files, read and written.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string_view>
#include <vector>

namespace codetr {

// Reads a file. Throws std::runtime_error naming it.
std::vector<uint8_t> read_file(std::filesystem::path const& path);

// Writes a file, which appears whole or not at all; makes its folder if it is missing.
// Throws std::runtime_error naming the file.
void write_file(std::filesystem::path const& path, std::string_view content);

}  // namespace codetr
