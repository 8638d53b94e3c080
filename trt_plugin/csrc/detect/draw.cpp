#include "draw.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <tuple>

#include "font.h"

namespace codetr {
namespace {

// RGB of each class: codetr.draw's, which picks each as far as possible from those before.
constexpr uint32_t kColors[] = {
    0x963bf9, 0x6bf61a, 0xe45706, 0x56d0f6, 0xf015a6, 0x728426, 0xf8b6fe, 0x2275e8, 0xfcc771,
    0xb05a7f, 0x96e7a7, 0x8f7bcc, 0xef71fc, 0xd0dd16, 0x07a285, 0xde1356, 0x3eb845, 0xb77d29,
    0xf08e88, 0x0685b6, 0xa74cc1, 0xf381be, 0xacb657, 0xc70cc1, 0x86acfa, 0x6d5bf8, 0x0df1d5,
    0xb65e46, 0xaf7bfe, 0xc03f99, 0xf78f41, 0x79f07b, 0x29cb8f, 0xf85e8a, 0xca77d2, 0x119245,
    0x13a6f1, 0x2dc5c1, 0x8fc102, 0xe29f06, 0xe11e0e, 0x9d60a2, 0x5578c1, 0x6baf6b, 0xc099e9,
    0xc83eed, 0xf642d7, 0xfc615f, 0xc7dd81, 0x14aecb, 0x8e57d8, 0xddbe2b, 0xcd3976, 0x5ce9ed,
    0xc54c57, 0xd87b99, 0xfe9ebc, 0x737fe7, 0x669d2b, 0xfe4da5, 0xca67fe, 0xf578da, 0xd16c0f,
    0xa18a21, 0x58cc16, 0x8971f5, 0x1de289, 0x8bd670, 0xc857c1, 0xeb7454, 0xfea779, 0xd891d1,
    0xcc5e9b, 0x5b9cfa, 0x4b66fd, 0x5cd8b9, 0x5df0b2, 0xa26fd4, 0xff8093, 0xd88457, 0xcbaa4a,
    0xe19d55, 0xc96b6f, 0x5eb7f1, 0xf698ee, 0x9ca503, 0xbec943, 0xa35efc, 0xf353c2, 0x97ee2e,
    0x7867cf, 0xd55c7c, 0x998af5, 0xd51d83, 0xde81fa, 0xb637c3,
};
constexpr uint32_t kOutline = 0x141414;
constexpr int kLeastFontSize = 9;

struct Rectangle {
  int left, top, right, bottom;  // right and bottom are outside
};

int shared_area(Rectangle const& first, Rectangle const& second) {
  const int width = std::min(first.right, second.right) - std::max(first.left, second.left);
  const int height = std::min(first.bottom, second.bottom) - std::max(first.top, second.top);
  return std::max(0, width) * std::max(0, height);
}

void fill(Image& image, Rectangle area, uint32_t color) {
  area = {std::max(area.left, 0), std::max(area.top, 0), std::min(area.right, image.width),
          std::min(area.bottom, image.height)};
  for (int y = area.top; y < area.bottom; ++y) {
    uint8_t* pixel = image.row(y) + size_t{3} * std::max(area.left, 0);
    for (int x = area.left; x < area.right; ++x) {
      for (int shift : {16, 8, 0}) *pixel++ = static_cast<uint8_t>(color >> shift);
    }
  }
}

// The inner `line` pixels of a rectangle's edge.
void draw_edge(Image& image, Rectangle const& at, int line, uint32_t color) {
  const int inner_top = std::min(at.top + line, at.bottom);
  const int inner_bottom = std::max(at.bottom - line, inner_top);
  fill(image, {at.left, at.top, at.right, inner_top}, color);
  fill(image, {at.left, inner_bottom, at.right, at.bottom}, color);
  fill(image, {at.left, inner_top, std::min(at.left + line, at.right), inner_bottom}, color);
  fill(image, {std::max(at.right - line, at.left), inner_top, at.right, inner_bottom}, color);
}

// The coloured line on the box's edge, a thin dark line around it for light backgrounds.
void draw_frame(Image& image, Rectangle const& frame, uint32_t color, int line) {
  const int rim = std::max(1, line / 3);
  draw_edge(image, {frame.left - rim, frame.top - rim, frame.right + rim, frame.bottom + rim}, rim,
            kOutline);
  draw_edge(image, frame, line, color);
}

// A box in whole pixels inside the picture, at least one pixel in size.
Rectangle to_pixels(std::array<float, 4> const& box, int height, int width) {
  const auto rounded = [](float side, int limit) {
    return static_cast<int>(std::clamp<double>(side, 0, limit) + 0.5);
  };
  const int left = std::min(rounded(box[0], width), width - 1);
  const int top = std::min(rounded(box[1], height), height - 1);
  return {left, top, std::max(left + 1, rounded(box[2], width)),
          std::max(top + 1, rounded(box[3], height))};
}

struct Tag {
  std::string text;
  int font_size = 0;  // pixels of the picture, of a line; 0: left out
  Rectangle place{};

  // Pixels of the picture for a pixel of the font.
  double scale() const { return font_size / 10.0; }
  int padding() const { return std::max(1, static_cast<int>(std::nearbyint(font_size * 0.22))); }
  int width() const {
    const auto columns = static_cast<double>(text.size() * (kGlyphWidth + 1) - 1);
    return static_cast<int>(std::ceil(columns * scale())) + 2 * padding();
  }
  int height() const { return static_cast<int>(std::ceil(kGlyphHeight * scale())) + 2 * padding(); }
};

// UTF-8 with a question mark for what the font lacks.
std::string to_ascii(std::string const& text) {
  std::string result;
  for (char byte : text) {
    if ((byte & 0xc0) == 0x80) continue;  // the rest of a character
    result += byte >= ' ' && byte <= '~' ? byte : '?';
  }
  return result;
}

// A label no larger than the picture: smaller letters first, then a shorter text, then none.
Tag fit_tag(std::string const& name, std::string const& score, int font_size, Image const& image) {
  const auto fits = [&](Tag const& tag) {
    return tag.width() <= image.width && tag.height() <= image.height;
  };
  for (; font_size >= kLeastFontSize; --font_size) {
    Tag tag{name + " " + score, font_size};
    if (fits(tag)) return tag;
  }
  for (size_t count = name.size(); count-- > 3;) {
    Tag tag{name.substr(0, count) + ".. " + score, kLeastFontSize};
    if (fits(tag)) return tag;
  }
  const Tag shortest{score, kLeastFontSize};
  return fits(shortest) ? shortest : Tag{};
}

// The first place that lies in the picture and is free; if all are taken, the one least covered.
Rectangle find_place(Tag const& tag, Rectangle const& box, std::vector<Rectangle> const& placed,
                     Image const& image) {
  const int width = tag.width(), height = tag.height();
  const std::pair<int, int> corners[] = {
      {box.left, box.top - height},  // above, flush left
      {box.right - width, box.top - height},
      {box.left, box.top},  // inside
      {box.right - width, box.top},
      {box.left, box.bottom},  // below
      {box.right - width, box.bottom},
      {box.left, box.bottom - height},  // inside, at the bottom
      {box.right - width, box.bottom - height},
  };
  // Pushed up or down, a label no longer touches its edge of the box: then it comes last.
  std::tuple<int, bool> best_cost{INT32_MAX, true};
  Rectangle best{};
  for (auto const& [x, y] : corners) {
    const int left = std::max(0, std::min(x, image.width - width));
    const int top = std::max(0, std::min(y, image.height - height));
    const Rectangle place{left, top, left + width, top + height};
    int covered = 0;
    for (Rectangle const& other : placed) covered += shared_area(place, other);
    const std::tuple<int, bool> cost{covered, top != y};
    if (cost < best_cost) {
      best_cost = cost;
      best = place;
    }
  }
  return best;
}

// The part of a pixel of the picture that a text covers, 0 to 1, with the text's corner at (0, 0).
double coverage(Tag const& tag, int x, int y) {
  static constexpr int kSamples = 4;  // in each direction
  int hits = 0;
  for (int sample = 0; sample < kSamples * kSamples; ++sample) {
    const double column = (x + (sample % kSamples + 0.5) / kSamples) / tag.scale();
    const double row = (y + (sample / kSamples + 0.5) / kSamples) / tag.scale();
    const auto letter = static_cast<size_t>(column) / (kGlyphWidth + 1);
    const int glyph_x = static_cast<int>(column) % (kGlyphWidth + 1);
    const int glyph_y = static_cast<int>(row);
    const bool inside = letter < tag.text.size() && glyph_x < kGlyphWidth && glyph_y < kGlyphHeight;
    if (inside && glyph_pixel(tag.text[letter], glyph_x, glyph_y)) ++hits;
  }
  return static_cast<double>(hits) / (kSamples * kSamples);
}

// A rectangle filled with the class colour; black text on light colours, white on dark.
void draw_tag(Image& image, Tag const& tag, uint32_t color) {
  if (tag.font_size == 0) return;
  fill(image, tag.place, color);
  const double luma = 0.299 * (color >> 16) + 0.587 * (color >> 8 & 0xff) + 0.114 * (color & 0xff);
  const double ink = luma > 130 ? 0 : 255;
  const Rectangle text{tag.place.left + tag.padding(), tag.place.top + tag.padding(),
                       tag.place.right - tag.padding(), tag.place.bottom - tag.padding()};
  for (int y = text.top; y < text.bottom; ++y) {
    for (int x = text.left; x < text.right; ++x) {
      const double share = coverage(tag, x - text.left, y - text.top);
      uint8_t* pixel = image.row(y) + size_t{3} * x;
      for (int channel = 0; channel < 3; ++channel) {
        pixel[channel] = static_cast<uint8_t>(pixel[channel] * (1 - share) + ink * share + 0.5);
      }
    }
  }
}

}  // namespace

Image draw_detections(Image image, Detections const& detections,
                      std::vector<std::string> const& class_names) {
  const double side = std::sqrt(static_cast<double>(image.height) * image.width);
  const int line = std::max(1, static_cast<int>(std::nearbyint(side * 0.0036)));
  const int font_size =
      std::max(kLeastFontSize,
               std::min(static_cast<int>(std::nearbyint(side * 0.022)) + 3, image.height / 4));
  std::vector<Rectangle> frames, placed;
  std::vector<uint32_t> colors;
  std::vector<Tag> tags;
  for (Detection const& detection : detections) {
    const auto label = static_cast<size_t>(detection.label);
    char score[16];
    std::snprintf(score, sizeof(score), "%.2f", detection.score);
    colors.push_back(kColors[label % std::size(kColors)]);
    frames.push_back(to_pixels(detection.box, image.height, image.width));
    tags.push_back(fit_tag(to_ascii(class_names.at(label)), score, font_size, image));
    if (tags.back().font_size == 0) continue;
    tags.back().place = find_place(tags.back(), frames.back(), placed, image);
    placed.push_back(tags.back().place);
  }
  for (size_t i = frames.size(); i-- > 0;) draw_frame(image, frames[i], colors[i], line);
  for (size_t i = tags.size(); i-- > 0;) draw_tag(image, tags[i], colors[i]);
  return image;
}

}  // namespace codetr
