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

cv::Size InputSizes::padded_size(std::vector<cv::Size> const& resized) const {
  if (!resizable()) return {width.max, height.max};
  const auto round_up = [](int side) {
    return (side + kSizeDivisor - 1) / kSizeDivisor * kSizeDivisor;
  };
  cv::Size padded{width.min, height.min};
  for (cv::Size const& size : resized) {
    padded.width = std::max(padded.width, round_up(size.width));
    padded.height = std::max(padded.height, round_up(size.height));
  }
  return padded;
}

Batch::Batch(int count, cv::Size size)
    : count(count),
      height(size.height),
      width(size.width),
      images(count * image_size()),
      image_shapes(static_cast<size_t>(count) * 2) {}

void Batch::add(cv::Mat const& picture, cv::Size size, Normalisation const& normalisation) {
  cv::Mat resized = picture;
  if (resized.size() != size) cv::resize(picture, resized, size, 0, 0, cv::INTER_LINEAR);
  image_shapes[2 * pictures] = size.height;
  image_shapes[2 * pictures + 1] = size.width;
  float* planes = images.data() + pictures++ * image_size();

  cv::Mat table(1, 256, CV_32FC3), normalised;  // the input for each 8-bit value
  std::vector<cv::Mat> targets;
  for (int channel = 0; channel < 3; ++channel) {  // B, G, R
    const int rgb = 2 - channel;
    for (int value = 0; value < 256; ++value) {
      table.at<cv::Vec3f>(value)[channel] =
          (static_cast<float>(value) - normalisation.mean[rgb]) / normalisation.std[rgb];
    }
    cv::Mat plane(height, width, CV_32F, planes + static_cast<size_t>(rgb) * height * width);
    targets.push_back(plane({{0, 0}, size}));
  }
  cv::LUT(resized, table, normalised);
  cv::split(normalised, targets);  // writes in place: the targets have the right size and type
}

void Batch::fill() {
  const int last = pictures - 1;
  for (int i = pictures; i < count; ++i) {
    std::copy_n(images.data() + last * image_size(), image_size(),
                images.data() + i * image_size());
    std::copy_n(image_shapes.data() + 2 * last, 2, image_shapes.data() + 2 * i);
  }
}

}  // namespace codetr
