#include "preprocess.h"

#include <algorithm>
#include <opencv2/core.hpp>
#include <opencv2/imgproc.hpp>

namespace codetr {

cv::Size InputSizes::target_size(cv::Size picture) const {
  const auto ratio = [](int limit, int side) { return static_cast<double>(limit) / side; };
  double factor = std::min(ratio(height.max, picture.height), ratio(width.max, picture.width));
  if (scale) {
    const auto [shorter, longer] = std::minmax(picture.height, picture.width);
    factor = std::min({factor, ratio(scale->first, longer), ratio(scale->second, shorter)});
  }
  const auto resized = [&](int side) { return std::max(1, static_cast<int>(side * factor + 0.5)); };
  return {resized(picture.width), resized(picture.height)};
}

cv::Size InputSizes::padded_size(cv::Size largest) const {
  if (!resizable()) return {width.max, height.max};
  const auto pad = [](int side, int least) {
    return std::max(least, (side + kSizeDivisor - 1) / kSizeDivisor * kSizeDivisor);
  };
  return {pad(largest.width, width.min), pad(largest.height, height.min)};
}

Batch::Batch(int count, cv::Size size)
    : count(count),
      height(size.height),
      width(size.width),
      images(size_t{3} * count * height * width),
      image_shapes(size_t{2} * count) {}

void Batch::set(int n, cv::Mat const& picture, cv::Size size, cv::Mat const& normalised) {
  image_shapes[2 * n] = size.height;
  image_shapes[2 * n + 1] = size.width;
  cv::Mat pixels = picture;
  if (picture.size() != size) cv::resize(picture, pixels, size, 0, 0, cv::INTER_LINEAR);
  cv::Mat input;
  cv::LUT(pixels, normalised, input);
  std::vector<cv::Mat> targets;
  for (int channel : {2, 1, 0}) {  // B, G, R
    float* plane = images.data() + (size_t{3} * n + channel) * height * width;
    targets.push_back(cv::Mat(height, width, CV_32F, plane)({{0, 0}, size}));
  }
  cv::split(input, targets);  // writes in place: the targets have the right size and type
}

}  // namespace codetr
