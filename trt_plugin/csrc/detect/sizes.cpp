#include "sizes.h"

#include <algorithm>

namespace codetr {

std::pair<int, int> fit_size(int height, int width, int max_height, int max_width) {
  const double factor =
      std::min(static_cast<double>(max_height) / height, static_cast<double>(max_width) / width);
  const auto fitted = [&](int side, int limit) {
    return std::min(limit, std::max(1, static_cast<int>(side * factor + 0.5)));
  };
  return {fitted(height, max_height), fitted(width, max_width)};
}

std::pair<int, int> InputSizes::target_size(int picture_height, int picture_width) const {
  return fit_size(picture_height, picture_width, height.max, width.max);
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
