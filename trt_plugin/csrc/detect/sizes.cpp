#include "sizes.h"

#include <algorithm>

namespace codetr {

std::pair<int, int> InputSizes::target_size(int picture_height, int picture_width) const {
  const auto ratio = [](int limit, int side) { return static_cast<double>(limit) / side; };
  double factor = std::min(ratio(height.max, picture_height), ratio(width.max, picture_width));
  if (scale) {
    const auto [shorter, longer] = std::minmax(picture_height, picture_width);
    factor = std::min({factor, ratio(scale->first, longer), ratio(scale->second, shorter)});
  }
  const auto resized = [&](int side) { return std::max(1, static_cast<int>(side * factor + 0.5)); };
  return {resized(picture_height), resized(picture_width)};
}

std::pair<int, int> InputSizes::padded_size(std::vector<std::pair<int, int>> const& resized) const {
  if (!resizable()) return {height.max, width.max};
  int needed_height = height.min, needed_width = width.min;
  const auto round_up = [](int side) {
    return (side + kSizeDivisor - 1) / kSizeDivisor * kSizeDivisor;
  };
  for (auto const& [h, w] : resized) {
    needed_height = std::max(needed_height, round_up(h));
    needed_width = std::max(needed_width, round_up(w));
  }
  return {needed_height, needed_width};
}

}  // namespace codetr
