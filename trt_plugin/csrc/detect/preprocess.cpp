#include "preprocess.h"

#include <algorithm>
#include <cmath>

namespace codetr {
namespace {

// OpenCV weighs in fixed point: 11 bits a direction.
constexpr float kOne = 2048.0F;

// From which two cells, and with which weights, each cell of a resized axis comes.
struct Axis {
  std::vector<int> first, second;
  std::vector<int> first_weight, second_weight;
};

// Beyond the border, columns take the border's cell with the whole weight, rows take it twice with
// the two weights that they had. That differs in rounding.
Axis make_axis(int source, int target, bool whole_at_border) {
  const double scale = 1.0 / (static_cast<double>(target) / source);
  Axis axis;
  for (int i = 0; i < target; ++i) {
    auto position = static_cast<float>((i + 0.5) * scale - 0.5);
    int cell = static_cast<int>(std::floor(position));
    float fraction = position - static_cast<float>(cell);
    if (whole_at_border && (cell < 0 || cell >= source - 1)) {
      cell = std::clamp(cell, 0, source - 1);
      fraction = 0;
    }
    axis.first.push_back(std::clamp(cell, 0, source - 1));
    axis.second.push_back(std::clamp(cell + 1, 0, source - 1));
    axis.first_weight.push_back(static_cast<int>(std::nearbyint((1.0F - fraction) * kOne)));
    axis.second_weight.push_back(static_cast<int>(std::nearbyint(fraction * kOne)));
  }
  return axis;
}

void resize_row(uint8_t const* source, Axis const& columns, int* target) {
  for (size_t x = 0; x < columns.first.size(); ++x, target += 3) {
    uint8_t const* first = source + size_t{3} * columns.first[x];
    uint8_t const* second = source + size_t{3} * columns.second[x];
    for (int channel = 0; channel < 3; ++channel) {
      target[channel] =
          first[channel] * columns.first_weight[x] + second[channel] * columns.second_weight[x];
    }
  }
}

// Half the size exactly: OpenCV takes the mean of four pixels.
Image halve(Image const& image) {
  Image result{image.height / 2, image.width / 2, {}};
  result.pixels.resize(static_cast<size_t>(result.height) * result.width * 3);
  for (int y = 0; y < result.height; ++y) {
    uint8_t const* upper = image.row(2 * y);
    uint8_t const* lower = image.row(2 * y + 1);
    uint8_t* target = result.row(y);
    for (int x = 0; x < result.width; ++x, upper += 6, lower += 6) {
      for (int channel = 0; channel < 3; ++channel) {
        const int sum = upper[channel] + upper[channel + 3] + lower[channel] + lower[channel + 3];
        *target++ = static_cast<uint8_t>((sum + 2) >> 2);
      }
    }
  }
  return result;
}

}  // namespace

Image resize(Image const& image, int height, int width) {
  if (image.height == height && image.width == width) return image;
  if (image.height == 2 * height && image.width == 2 * width) return halve(image);
  const Axis columns = make_axis(image.width, width, true);
  const Axis rows = make_axis(image.height, height, false);
  const size_t count = static_cast<size_t>(width) * 3;
  Image result{height, width, {}};
  result.pixels.resize(count * height);

  // The last two source rows, resized along x.
  std::vector<int> above(count), below(count);
  int above_row = -1, below_row = -1;
  for (int y = 0; y < height; ++y) {
    if (above_row != rows.first[y]) {
      if (below_row == rows.first[y]) {
        std::swap(above, below);
        std::swap(above_row, below_row);
      } else {
        resize_row(image.row(rows.first[y]), columns, above.data());
        above_row = rows.first[y];
      }
    }
    if (below_row != rows.second[y]) {
      resize_row(image.row(rows.second[y]), columns, below.data());
      below_row = rows.second[y];
    }
    const int above_weight = rows.first_weight[y], below_weight = rows.second_weight[y];
    uint8_t* target = result.row(y);
    for (size_t i = 0; i < count; ++i) {
      const int sum =
          ((above_weight * (above[i] >> 4)) >> 16) + ((below_weight * (below[i] >> 4)) >> 16);
      target[i] = static_cast<uint8_t>(std::min((sum + 2) >> 2, 255));
    }
  }
  return result;
}

Batch::Batch(int count, int height, int width)
    : count(count),
      height(height),
      width(width),
      images(static_cast<size_t>(count) * 3 * height * width),
      image_shapes(static_cast<size_t>(count) * 2) {}

void Batch::add(Image const& picture, std::pair<int, int> size,
                Normalisation const& normalisation) {
  const auto [resized_height, resized_width] = size;
  const Image resized = resize(picture, resized_height, resized_width);
  image_shapes[2 * pictures] = resized_height;
  image_shapes[2 * pictures + 1] = resized_width;
  float* target = image(pictures++);
  for (int channel = 0; channel < 3; ++channel) {
    std::array<float, 256> normalised;  // of each value of a pixel
    for (int value = 0; value < 256; ++value) {
      normalised[value] =
          (static_cast<float>(value) - normalisation.mean[channel]) / normalisation.std[channel];
    }
    for (int y = 0; y < resized_height; ++y) {
      uint8_t const* source = resized.row(y) + channel;
      float* row = target + (static_cast<size_t>(channel) * height + y) * width;
      for (int x = 0; x < resized_width; ++x) row[x] = normalised[source[3 * x]];
    }
  }
}

void Batch::fill() {
  const int last = pictures - 1;
  for (int i = pictures; i < count; ++i) {
    std::copy_n(image(last), image_size(), image(i));
    std::copy_n(image_shapes.data() + 2 * last, 2, image_shapes.data() + 2 * i);
  }
}

}  // namespace codetr
