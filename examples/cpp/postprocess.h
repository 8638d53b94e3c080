// The network's output to detections, as codetr/detector/postprocess.py, in float32: boxes in the
// picture's own pixels, non-maximum suppression (NMS), threshold.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

namespace codetr {

struct Detection {
  std::array<float, 4> box;  // x1 y1 x2 y2, pixels
  float score;
  int64_t label;
};
using Detections = std::vector<Detection>;

enum class NmsMethod { kSoft, kHard, kNone };

// Arguments of codetr.detector.postprocess.apply_nms, with its defaults.
struct Nms {
  NmsMethod method = NmsMethod::kSoft;
  double iou_threshold = 0.8;
  bool gaussian = false;  // the decay of soft-NMS; else linear
  double sigma = 0.5;
  double min_score = 1e-3;
  std::optional<size_t> max_per_img;
};

// Makes the detections of one picture from the network's rows, without padding (label -1) and
// non-finite rows. Boxes are mapped to the picture's own pixels and clipped to it.
//   boxes [count, 4], in pixels of the resized picture; scores [count]; labels [count]
//   size, resized: (height, width) of the picture and of the resized picture
Detections restore(float const* boxes, float const* scores, int64_t const* labels, size_t count,
                   std::pair<int, int> size, std::pair<int64_t, int64_t> resized);

// Suppresses detections that overlap a better one of the same class. Best first.
Detections apply_nms(Detections const& detections, Nms const& nms);

// Returns at most `top` detections with a score of at least `threshold`, best first.
Detections select(Detections detections, double threshold, std::optional<size_t> top);

}  // namespace codetr
