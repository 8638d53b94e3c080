// The network's output to detections, as codetr/detector/postprocess.py, in float32: boxes in the
// picture's own pixels, non-maximum suppression (NMS), threshold.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <opencv2/core/types.hpp>
#include <optional>
#include <string>
#include <vector>

namespace codetr {

struct Detection {
  std::array<float, 4> box;  // x1 y1 x2 y2, pixels
  float score;
  int64_t label;
};
using Detections = std::vector<Detection>;

// Arguments of codetr.detector.postprocess.apply_nms, with its defaults.
struct Nms {
  std::string method = "soft";  // or "hard", "none"
  double iou_threshold = 0.8;
  bool gaussian = false;  // the decay of soft-NMS; else linear
  double sigma = 0.5;
  double min_score = 1e-3;
  std::optional<size_t> max_per_img;
};

// The network's output: K rows for each of N pictures; a row is a detection or padding.
struct Output {
  size_t rows = 0;              // K
  std::vector<float> boxes;     // [N, K, 4]: x1 y1 x2 y2 in pixels of the resized picture
  std::vector<float> scores;    // [N, K]
  std::vector<int64_t> labels;  // [N, K]; -1 for padding
};

// Makes the detections of picture n from its rows, without padding and non-finite rows. Boxes are
// mapped to the picture's own pixels and clipped to it.
//   size, resized: of the picture and of the resized picture
Detections restore(Output const& output, size_t n, cv::Size size, cv::Size resized);

// Suppresses detections that overlap a better one of the same class. Best first.
Detections apply_nms(Detections detections, Nms const& nms);

// Returns at most `top` detections with a score of at least `threshold`, best first.
Detections select(Detections detections, double threshold, std::optional<size_t> top);

}  // namespace codetr
