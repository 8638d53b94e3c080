// Sizes of the network's input: fixed, or ranges; as codetr.sizes.
#pragma once

#include <optional>
#include <utility>
#include <vector>

namespace codetr {

// A dynamic height or width is a multiple of this.
inline constexpr int kSizeDivisor = 32;

// Smallest, usual and largest of a size; all the same where it is fixed.
struct Range {
  int min = 0, opt = 0, max = 0;

  // Whether the size is decided at run time.
  bool dynamic() const { return min < max; }
};

// Of images [N, 3, H, W] and image_shapes [N, 2]: N, and H and W in pixels.
struct InputSizes {
  Range batch, height, width;
  // Limits of a picture's longer and shorter side; without them a picture fills the largest input.
  std::optional<std::pair<int, int>> scale;

  // Whether any of them is decided at run time.
  bool dynamic() const { return batch.dynamic() || resizable(); }

  // Whether height or width is decided at run time.
  bool resizable() const { return height.dynamic() || width.dynamic(); }

  // The (h, w) to which a picture is resized: its ratio kept, rounded half up, as large as the
  // largest input and the scale allow.
  std::pair<int, int> target_size(int picture_height, int picture_width) const;

  // Height and width of an input that holds pictures of these sizes: the fixed ones, or no larger
  // than the largest picture, a multiple of kSizeDivisor and the smallest input need.
  std::pair<int, int> padded_size(std::vector<std::pair<int, int>> const& resized) const;
};

}  // namespace codetr
