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
  int count = 0;  // N
  int height = 0, width = 0;
  std::vector<float> images;          // [N, 3, height, width]
  std::vector<int64_t> image_shapes;  // [N, 2]: (h, w) of each resized picture in its padding

  // Makes room for N pictures, all zero.
  Batch(int count, int height, int width);

  float* image(int index) { return images.data() + index * image_size(); }
  size_t image_size() const { return size_t{3} * height * width; }

  // Fits a picture in: the largest size of its ratio, in the upper left corner.
  void set(int index, Image const& image, Normalisation const& normalisation);

  // Makes the pictures from `index` on those of `index` - 1, for a network that wants N.
  void repeat_from(int index);
};

// The largest (height, width) with the picture's ratio, rounded half up, inside max_height x
// max_width.
std::pair<int, int> fit_size(int height, int width, int max_height, int max_width);

// Resizes as OpenCV's bilinear interpolation of 8 bits, without antialiasing.
Image resize(Image const& image, int height, int width);

}  // namespace codetr
