// The pictures of a run: their files, their names in the results, their pixels.
#pragma once

#include <filesystem>
#include <opencv2/core/mat.hpp>
#include <string>
#include <vector>

#include "postprocess.h"

namespace codetr {

struct Picture {
  std::filesystem::path path;
  std::string name;         // relative to the folder that all pictures share, with "/"
  std::string output_name;  // of the annotated picture
};

// Finds the pictures that the arguments name, in order, each file once.
//   arguments: files, and folders, which stand for the pictures in them
// Throws UsageError for a file that does not exist and for a folder without pictures.
std::vector<Picture> find_pictures(std::vector<std::string> const& arguments);

// Reads a picture, turned upright by its EXIF orientation, without its transparency.
// Returns [height, width] of BGR, 8 bits a channel; empty if the file cannot be read.
cv::Mat load_picture(std::filesystem::path const& path);

// Draws boxes, class names and scores on an 8-bit BGR picture, the best score on top.
void draw_detections(cv::Mat& image, Detections const& detections,
                     std::vector<std::string> const& class_names);

// Writes a JPEG file. Throws an exception that names it.
void save_jpeg(cv::Mat const& image, std::filesystem::path const& path);

}  // namespace codetr
