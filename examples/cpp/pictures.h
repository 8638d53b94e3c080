// The pictures of a run: their files, their names in the results, their pixels.
#pragma once

#include <algorithm>
#include <filesystem>
#include <opencv2/imgcodecs.hpp>
#include <set>
#include <string>
#include <vector>

#include "files.h"

namespace codetr {

struct Picture {
  fs::path path;
  std::string name;         // relative to the folder that all pictures share, with "/"
  std::string output_name;  // of the annotated picture
};

inline std::vector<fs::path> expand(std::string const& argument) {
  if (!fs::exists(argument)) throw UsageError(concat(argument, ": no such file"));
  if (!fs::is_directory(argument)) return {argument};
  static const std::set<std::string> kSuffixes{".jpg", ".jpeg", ".png", ".webp",
                                               ".bmp", ".tif",  ".tiff"};
  std::vector<fs::path> files;
  for (auto const& entry : fs::directory_iterator(argument)) {
    std::string suffix = entry.path().extension();
    std::ranges::transform(suffix, suffix.begin(), ::tolower);
    const bool hidden = entry.path().filename().string().starts_with('.');
    if (!hidden && kSuffixes.contains(suffix)) files.push_back(entry);
  }
  if (files.empty()) throw UsageError(concat(argument, ": the folder holds no picture"));
  std::ranges::sort(files);
  return files;
}

// Returns the folder that holds both folders.
inline fs::path shared_folder(fs::path first, fs::path const& second) {
  while (*second.lexically_relative(first).begin() == "..") first = first.parent_path();
  return first;
}

// Returns whether a JPEG file ends before its end-of-image marker. OpenCV shows the rest as gray.
inline bool is_truncated_jpeg(std::string const& file) {
  const auto byte = [&](size_t at) { return static_cast<uint8_t>(file[at]); };
  if (!file.starts_with("\xff\xd8")) return false;
  size_t at = 2;  // the segments before the pixels; one may hold a thumbnail with its own end
  while (at + 3 < file.size() && byte(at) == 0xff && byte(at + 1) != 0xda) {
    at += 2 + (byte(at + 2) << 8 | byte(at + 3));
  }
  return file.find("\xff\xd9", at) == file.npos;
}

// Finds the pictures that the arguments name, in order, each file once.
//   arguments: files, and folders, which stand for the pictures in them
// Throws UsageError for a file that does not exist and for a folder without pictures.
inline std::vector<Picture> find_pictures(std::vector<std::string> const& arguments) {
  std::vector<Picture> pictures;
  std::vector<fs::path> absolute;
  std::set<fs::path> known;
  std::set<std::string> taken;
  fs::path shared;
  for (std::string const& argument : arguments) {
    for (fs::path const& path : expand(argument)) {
      if (!known.insert(fs::canonical(path)).second) continue;
      absolute.push_back(fs::absolute(path).lexically_normal());
      const fs::path folder = absolute.back().parent_path();
      shared = pictures.empty() ? folder : shared_folder(shared, folder);
      std::string output_name = concat(path.stem().string(), ".jpg");
      for (int number = 2; !taken.insert(output_name).second; ++number) {
        output_name = concat(path.stem().string(), "_", number, ".jpg");
      }
      pictures.push_back({path, "", output_name});
    }
  }
  for (size_t i = 0; i < pictures.size(); ++i) {
    pictures[i].name = absolute[i].lexically_relative(shared).generic_string();
  }
  return pictures;
}

// Reads a picture, turned upright by its EXIF orientation, without its transparency.
// Returns [height, width] of BGR, 8 bits a channel; empty if the file cannot be read.
inline cv::Mat load_picture(fs::path const& path) {
  try {
    std::string file = read_file(path);
    if (file.empty() || is_truncated_jpeg(file)) return {};
    const cv::Mat bytes(1, static_cast<int>(file.size()), CV_8U, file.data());
    return cv::imdecode(bytes, cv::IMREAD_COLOR);
  } catch (std::exception const&) {  // no permission, or a size above OpenCV's limits
    return {};
  }
}

// Writes a JPEG file. Throws an exception that names it.
inline void save_jpeg(cv::Mat const& image, fs::path const& path) {
  std::vector<uint8_t> file;
  cv::imencode(".jpg", image, file, {cv::IMWRITE_JPEG_QUALITY, 95});
  write_file(path, {file.begin(), file.end()});
}

}  // namespace codetr
