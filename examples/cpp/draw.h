// Boxes and labels on a picture.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <opencv2/imgproc.hpp>
#include <string>
#include <vector>

#include "postprocess.h"

namespace codetr {

inline constexpr int kFont = cv::FONT_HERSHEY_SIMPLEX;
inline constexpr double kLetterPixels = 30.0;  // height of a line of text at OpenCV's scale 1

// Returns BGR, light enough for black text. Hues of neighbouring labels are the golden angle apart.
inline cv::Scalar color_of(int64_t label) {
  const auto hue = static_cast<uint8_t>(std::fmod(label * 0.618034, 1.0) * 180);
  cv::Mat color(1, 1, CV_8UC3, cv::Scalar(hue, 140, 250));
  cv::cvtColor(color, color, cv::COLOR_HSV2BGR);
  return color.at<cv::Vec3b>(0);
}

// Writes a text above a box, or as near as the picture allows.
inline void draw_label(cv::Mat& image, cv::Rect const& box, std::string const& text,
                       cv::Scalar const& color, double scale) {
  int below = 0;  // pixels of the letters below the base line
  const int stroke = std::max(1, cvRound(scale * 1.5));
  const cv::Size size = cv::getTextSize(text, kFont, scale, stroke, &below);
  const int padding = std::max(1, cvRound(scale * 6));
  const int width = size.width + 2 * padding, height = size.height + below + padding;
  const int left = std::max(0, std::min(box.x, image.cols - width));
  const int top = std::max(0, box.y - height);
  cv::rectangle(image, {left, top, width, height}, color, cv::FILLED);
  cv::putText(image, text, {left + padding, top + height - below - padding / 2}, kFont, scale,
              cv::Scalar::all(0), stroke, cv::LINE_AA);
}

// Draws boxes, class names and scores on an 8-bit BGR picture, the best score on top.
inline void draw_detections(cv::Mat& image, Detections const& detections,
                            std::vector<std::string> const& class_names) {
  const double side = std::sqrt(image.size().area());
  const int line = std::max(1, cvRound(side * 0.0036)), rim = std::max(1, line / 3);
  const double scale = std::max(9.0, side * 0.022 + 3) / kLetterPixels;
  const auto frame_of = [](Detection const& one) {
    auto const& [x1, y1, x2, y2] = one.box;
    return cv::Rect(cvRound(x1), cvRound(y1), cvRound(x2 - x1), cvRound(y2 - y1));
  };
  // The best score is on top, and labels are above all boxes. A thin dark line around each box
  // shows it on light backgrounds.
  for (auto one = detections.rbegin(); one != detections.rend(); ++one) {
    cv::rectangle(image, frame_of(*one), cv::Scalar::all(20), line + 2 * rim);
    cv::rectangle(image, frame_of(*one), color_of(one->label), line);
  }
  for (auto one = detections.rbegin(); one != detections.rend(); ++one) {
    char score[16];
    std::snprintf(score, sizeof(score), " %.2f", one->score);
    draw_label(image, frame_of(*one), class_names.at(one->label) + score, color_of(one->label),
               scale);
  }
}

}  // namespace codetr
