// The pictures of a run: their files, their names in the results, their pixels.
#pragma once

#include <filesystem>
#include <opencv2/core/mat.hpp>
#include <stdexcept>
#include <string>
#include <vector>

namespace codetr {

// A file that is no picture or is damaged. One line, the path first.
struct PictureError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

struct Picture {
  std::filesystem::path path;
  std::string name;         // relative to the folder that all pictures share, with "/"
  std::string output_name;  // of the annotated picture
};

// Finds the pictures that the arguments name, in order, each file once.
//   arguments: files, and folders, which stand for the pictures in them
// Throws UsageError for a file that does not exist and for a folder without pictures.
std::vector<Picture> find_pictures(std::vector<std::string> const& arguments);

// Checks that a file begins like a picture. Throws PictureError.
void check_picture(std::filesystem::path const& path);

// Reads a picture, turned upright by its EXIF orientation, transparent pixels laid on white.
// Returns [height, width] of BGR, 8 bits a channel. Throws PictureError.
cv::Mat load_picture(std::filesystem::path const& path);

// Writes a JPEG file. Throws std::runtime_error.
void save_jpeg(cv::Mat const& image, std::filesystem::path const& path);

}  // namespace codetr
