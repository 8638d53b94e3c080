// Pictures to the network's input, bit for bit as codetr.preprocess: resized in 8 bits, normalised
// in float32, padded right and below with zeros.
#pragma once

#include <array>
#include <cstdint>
#include <utility>
#include <vector>

#include "image.h"

namespace codetr {

// Of R, G, B in 0..255: an input is (pixel - mean) / std.
struct Normalisation {
  std::array<float, 3> mean;
  std::array<float, 3> std;
};

// What the network gets, and what leads back from it.
struct Batch {
  int count = 0;     // N
  int pictures = 0;  // how many of them are pictures of their own, the rest repeat the last
  int height = 0, width = 0;
  std::vector<float> images;          // [N, 3, height, width]
  std::vector<int64_t> image_shapes;  // [N, 2]: (h, w) of each resized picture in its padding

  // Makes room for N pictures, all zero.
  Batch(int count, int height, int width);

  float* image(int index) { return images.data() + index * image_size(); }
  size_t image_size() const { return size_t{3} * height * width; }

  // Adds a picture in this (height, width), in the upper left corner.
  void add(Image const& picture, std::pair<int, int> size, Normalisation const& normalisation);

  // Repeats the last picture up to N, for a network that wants so many.
  void fill();
};

// Resizes as OpenCV's bilinear interpolation of 8 bits, without antialiasing.
Image resize(Image const& image, int height, int width);

}  // namespace codetr
