// Which pictures a command reads, and how it calls them in its results.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

namespace codetr {

struct Picture {
  std::filesystem::path path;
  std::string name;         // below the folder that all pictures share, with "/"
  std::string output_name;  // of the annotated picture
};

// The files in order, each once. Throws UsageError for one that is not there.
std::vector<Picture> find_pictures(std::vector<std::string> const& arguments);

// An id for each picture: its name where all are numbers (000000000139.jpg), else 1, 2, 3, ...
std::vector<int64_t> image_ids(std::vector<std::string> const& names);

}  // namespace codetr
