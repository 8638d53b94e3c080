#include "draw.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <opencv2/imgproc.hpp>
#include <tuple>

namespace codetr {
namespace {

// RGB of each class: the palette of codetr.draw, whose colours are as far apart as possible.
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
constexpr int kFont = cv::FONT_HERSHEY_SIMPLEX;
constexpr int kLeastFontSize = 9;     // pixels of a line of text
constexpr double kFontPixels = 30.0;  // pixels of a line of text at OpenCV's scale 1

cv::Scalar color_of(int64_t label) {
  const uint32_t rgb = kColors[static_cast<size_t>(label) % std::size(kColors)];
  return {double(rgb & 0xff), double(rgb >> 8 & 0xff), double(rgb >> 16)};  // BGR
}

int rounded(double value) { return static_cast<int>(std::nearbyint(value)); }

void fill(cv::Mat& image, cv::Rect const& area, cv::Scalar const& color) {
  const cv::Rect inside = area & cv::Rect({0, 0}, image.size());
  if (!inside.empty()) image(inside).setTo(color);
}

// Fills the outer `line` pixels of an area.
void draw_edge(cv::Mat& image, cv::Rect const& area, int line, cv::Scalar const& color) {
  const int width = std::min(line, area.width), height = std::min(line, area.height);
  fill(image, {area.x, area.y, area.width, height}, color);
  fill(image, {area.x, area.br().y - height, area.width, height}, color);
  fill(image, {area.x, area.y, width, area.height}, color);
  fill(image, {area.br().x - width, area.y, width, area.height}, color);
}

// Draws the coloured line, and a thin dark line around it for light backgrounds.
void draw_frame(cv::Mat& image, cv::Rect const& frame, cv::Scalar const& color, int line) {
  const int rim = std::max(1, line / 3);
  const cv::Rect around{frame.x - rim, frame.y - rim, frame.width + 2 * rim,
                        frame.height + 2 * rim};
  draw_edge(image, around, rim, cv::Scalar::all(20));
  draw_edge(image, frame, line, color);
}

// Rounds a box to whole pixels inside the picture, at least one pixel in size.
cv::Rect to_pixels(std::array<float, 4> const& box, cv::Size const& size) {
  const auto pixel = [](float side, int limit) {
    return static_cast<int>(std::clamp<double>(side, 0, limit) + 0.5);
  };
  const int left = std::min(pixel(box[0], size.width), size.width - 1);
  const int top = std::min(pixel(box[1], size.height), size.height - 1);
  return {left, top, std::max(1, pixel(box[2], size.width) - left),
          std::max(1, pixel(box[3], size.height) - top)};
}

struct Tag {
  std::string text;
  double scale = 0;
  int padding = 0, below = 0;  // pixels; `below`: the part of the letters below the base line
  cv::Rect place;              // empty if the label is left out
};

// Makes a label no larger than the picture: with smaller letters if necessary, else without text.
Tag make_tag(std::string const& text, int font_size, cv::Size const& limits) {
  for (; font_size >= kLeastFontSize; --font_size) {
    Tag tag{text, font_size / kFontPixels, std::max(1, rounded(font_size * 0.22)), 0, {}};
    const cv::Size size = cv::getTextSize(text, kFont, tag.scale, 1, &tag.below);
    tag.place = {0, 0, size.width + 2 * tag.padding, size.height + tag.below + tag.padding};
    if (tag.place.width <= limits.width && tag.place.height <= limits.height) return tag;
  }
  return {};
}

// Moves a label to the first place at its box that is free; if all are taken, to the one least
// covered. A label that the picture's edge pushes off its box comes last.
void place_tag(Tag& tag, cv::Rect const& box, std::vector<cv::Rect> const& placed,
               cv::Size const& limits) {
  const cv::Size size = tag.place.size();
  const int right = box.br().x - size.width, bottom = box.br().y;
  std::tuple<int, bool> least{INT32_MAX, true};
  for (int y : {box.y - size.height, box.y, bottom, bottom - size.height}) {
    for (int x : {box.x, right}) {
      const cv::Point corner{std::clamp(x, 0, limits.width - size.width),
                             std::clamp(y, 0, limits.height - size.height)};
      const cv::Rect place(corner, size);
      int covered = 0;
      for (cv::Rect const& other : placed) covered += (place & other).area();
      const std::tuple cost{covered, corner.y != y};
      if (cost < least) std::tie(least, tag.place) = std::tuple{cost, place};
    }
  }
}

// Draws black text on light colours, white text on dark colours.
void draw_tag(cv::Mat& image, Tag const& tag, cv::Scalar const& color) {
  fill(image, tag.place, color);
  const double luma = 0.114 * color[0] + 0.587 * color[1] + 0.299 * color[2];
  const cv::Point start{tag.place.x + tag.padding, tag.place.br().y - tag.below - tag.padding / 2};
  const int stroke = std::max(1, rounded(tag.scale * 1.5));
  cv::putText(image, tag.text, start, kFont, tag.scale, cv::Scalar::all(luma > 130 ? 0 : 255),
              stroke, cv::LINE_AA);
}

}  // namespace

void draw_detections(cv::Mat& image, Detections const& detections,
                     std::vector<std::string> const& class_names) {
  const cv::Size size = image.size();
  const double side = std::sqrt(size.area());
  const int line = std::max(1, rounded(side * 0.0036));
  const int font_size =
      std::max(kLeastFontSize, std::min(rounded(side * 0.022) + 3, size.height / 4));
  std::vector<cv::Rect> frames, placed;
  std::vector<Tag> tags;
  for (Detection const& detection : detections) {
    char score[16];
    std::snprintf(score, sizeof(score), " %.2f", detection.score);
    frames.push_back(to_pixels(detection.box, size));
    tags.push_back(make_tag(class_names.at(detection.label) + score, font_size, size));
    if (tags.back().place.empty()) continue;
    place_tag(tags.back(), frames.back(), placed, size);
    placed.push_back(tags.back().place);
  }
  for (size_t i = frames.size(); i-- > 0;) {
    draw_frame(image, frames[i], color_of(detections[i].label), line);
  }
  for (size_t i = tags.size(); i-- > 0;) draw_tag(image, tags[i], color_of(detections[i].label));
}

}  // namespace codetr
