// Pictures to the network's input, as codetr/detector/preprocess.py: resized in 8 bits, normalised
// in float32, padded with zeros at the right and at the bottom.
#pragma once

#include <cstdint>
#include <opencv2/core/mat.hpp>
#include <optional>
#include <utility>
#include <vector>

namespace codetr {

// A dynamic height or width is a multiple of this.
inline constexpr int kSizeDivisor = 32;

// Smallest and largest value of a size; equal if the size is fixed.
struct SizeRange {
  int min = 0, max = 0;

  bool dynamic() const { return min < max; }
};

// The sizes of the inputs images [N, 3, H, W] and image_shapes [N, 2].
struct InputSizes {
  SizeRange batch, height, width;  // N; H and W in pixels
  // Limits of a resized picture's longer and shorter side. None: a picture fills the largest input.
  std::optional<std::pair<int, int>> scale;

  bool resizable() const { return height.dynamic() || width.dynamic(); }

  // Returns the size to which a picture is resized. Its aspect ratio stays.
  cv::Size target_size(cv::Size picture) const;

  // Returns the size of an input that holds resized pictures up to this height and this width.
  cv::Size padded_size(cv::Size largest) const;
};

// The network's input, and the sizes that map its boxes back.
struct Batch {
  int count;  // N
  int height, width;
  std::vector<float> images;          // [N, 3, height, width], RGB
  std::vector<int64_t> image_shapes;  // [N, 2]: (height, width) of each resized picture

  // Allocates N pictures of zeros.
  Batch(int count, cv::Size size);

  // Resizes a picture (8-bit BGR) to `size` and puts it into the upper left corner of row n.
  //   normalised: the input for each 8-bit value, [1, 256] of float32 BGR
  void set(int n, cv::Mat const& picture, cv::Size size, cv::Mat const& normalised);
};

}  // namespace codetr
