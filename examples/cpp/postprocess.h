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

// Makes the detections of one picture from the network's rows, without padding (label -1) and
// non-finite rows. Boxes are mapped to the picture's own pixels and clipped to it.
//   boxes [count, 4], in pixels of the resized picture; scores [count]; labels [count]
//   size, resized: of the picture and of the resized picture
Detections restore(float const* boxes, float const* scores, int64_t const* labels, size_t count,
                   cv::Size size, cv::Size resized);

// Suppresses detections that overlap a better one of the same class. Best first.
Detections apply_nms(Detections detections, Nms const& nms);

// Returns at most `top` detections with a score of at least `threshold`, best first.
Detections select(Detections detections, double threshold, std::optional<size_t> top);

}  // namespace codetr
