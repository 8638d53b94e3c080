// Pictures to the network's input, as codetr/detector/preprocess.py: resized in 8 bits, normalised
// in float32, padded with zeros at the right and at the bottom. gpu_input.h does the same on the
// GPU.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <opencv2/core.hpp>
#include <opencv2/imgproc.hpp>
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
  cv::Size target_size(cv::Size picture) const {
    const auto ratio = [](int limit, int side) { return static_cast<double>(limit) / side; };
    double factor = std::min(ratio(height.max, picture.height), ratio(width.max, picture.width));
    if (scale) {
      const auto [shorter, longer] = std::minmax(picture.height, picture.width);
      factor = std::min({factor, ratio(scale->first, longer), ratio(scale->second, shorter)});
    }
    const auto resized = [&](int side) {
      return std::max(1, static_cast<int>(side * factor + 0.5));
    };
    return {resized(picture.width), resized(picture.height)};
  }

  // Returns the size of an input that holds resized pictures up to this height and this width.
  cv::Size padded_size(cv::Size largest) const {
    if (!resizable()) return {width.max, height.max};
    const auto pad = [](int side, int least) {
      return std::max(least, (side + kSizeDivisor - 1) / kSizeDivisor * kSizeDivisor);
    };
    return {pad(largest.width, width.min), pad(largest.height, height.min)};
  }
};

// How 8-bit values become numbers: (value - mean) / std, of red, green and blue.
struct Normalisation {
  std::array<float, 3> mean{}, std{};
};

// The pictures of a run, and the sizes that map its boxes back.
struct Batch {
  int count;  // N
  int height, width;
  Normalisation normalisation;
  std::vector<cv::Mat> pictures;      // 8-bit BGR, of any sizes
  std::vector<int64_t> image_shapes;  // [N, 2]: (height, width) of each resized picture

  Batch(int count, cv::Size size, Normalisation const& normalisation)
      : count(count),
        height(size.height),
        width(size.width),
        normalisation(normalisation),
        pictures(static_cast<size_t>(count)),
        image_shapes(size_t{2} * count) {}

  // Puts a picture into row n, to be resized to `size`. The pixels are shared, not copied.
  void set(int n, cv::Mat const& picture, cv::Size size) {
    pictures[n] = picture;
    image_shapes[2 * n] = size.height;
    image_shapes[2 * n + 1] = size.width;
  }

  // Computes the network's input [N, 3, height, width], RGB: each picture is resized and
  // normalised, and lies in the upper left corner of its row.
  std::vector<float> images() const {
    cv::Mat normalised(1, 256, CV_32FC3);  // the input for each 8-bit value, BGR
    for (int value = 0; value < 256; ++value) {
      for (int channel = 0; channel < 3; ++channel) {
        normalised.at<cv::Vec3f>(value)[2 - channel] =
            (static_cast<float>(value) - normalisation.mean[channel]) / normalisation.std[channel];
      }
    }
    std::vector<float> result(size_t{3} * count * height * width);
    for (int n = 0; n < count; ++n) {
      const cv::Size size(static_cast<int>(image_shapes[2 * n + 1]),
                          static_cast<int>(image_shapes[2 * n]));
      cv::Mat pixels = pictures[n];
      if (pixels.size() != size) {
        cv::resize(pictures[n], pixels, size, 0, 0, cv::INTER_LINEAR);
      }
      cv::Mat input;
      cv::LUT(pixels, normalised, input);
      std::vector<cv::Mat> targets;
      for (int channel : {2, 1, 0}) {  // B, G, R
        float* plane = result.data() + (size_t{3} * n + channel) * height * width;
        targets.push_back(cv::Mat(height, width, CV_32F, plane)({{0, 0}, size}));
      }
      cv::split(input, targets);  // writes in place: the targets have the right size and type
    }
    return result;
  }
};

}  // namespace codetr
