// The network's output to detections, as codetr/detector/postprocess.py, in float32: boxes in the
// picture's own pixels, non-maximum suppression (NMS), threshold.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <functional>
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

// Returns 0 between classes and if both boxes are empty.
inline float class_wise_iou(Detection const& first, Detection const& second) {
  if (first.label != second.label) return 0;
  auto const &a = first.box, &b = second.box;
  const auto area = [](auto const& box) { return (box[2] - box[0]) * (box[3] - box[1]); };
  const float width = std::min(a[2], b[2]) - std::max(a[0], b[0]);
  const float height = std::min(a[3], b[3]) - std::max(a[1], b[1]);
  const float intersection = std::max(width, 0.0F) * std::max(height, 0.0F);
  const float both = area(a) + area(b) - intersection;
  return both > 0 ? intersection / both : 0;
}

inline void sort_by_score(Detections& detections) {
  std::ranges::stable_sort(detections, std::greater(), &Detection::score);
}

inline Detections hard_nms(Detections const& sorted, float threshold) {
  Detections kept;
  for (Detection const& candidate : sorted) {
    const bool suppressed = std::ranges::any_of(kept, [&](Detection const& better) {
      return class_wise_iou(better, candidate) > threshold;
    });
    if (!suppressed) kept.push_back(candidate);
  }
  return kept;
}

// Returns the factor on a score if a better detection with this overlap is kept.
inline float soft_weight(float iou, Nms const& nms) {
  if (nms.gaussian) return std::exp(-(iou * iou) / static_cast<float>(nms.sigma));
  return iou >= static_cast<float>(nms.iou_threshold) ? 1 - iou : 1;
}

// As in mmcv, the first detection is kept whatever its score.
inline Detections soft_nms(Detections alive, Nms const& nms) {
  Detections kept;
  while (!alive.empty()) {
    const auto best = std::ranges::max_element(alive, {}, &Detection::score);
    kept.push_back(*best);
    alive.erase(best);
    for (Detection& other : alive) {
      other.score *= soft_weight(class_wise_iou(kept.back(), other), nms);
    }
    std::erase_if(alive, [least = static_cast<float>(nms.min_score)](Detection const& other) {
      return !(other.score >= least);
    });
  }
  return kept;
}

// Makes the detections of picture n from its rows, without padding and non-finite rows. Boxes are
// mapped to the picture's own pixels and clipped to it.
//   size, resized: of the picture and of the resized picture
inline Detections restore(Output const& output, size_t n, cv::Size size, cv::Size resized) {
  const double limits[] = {double(size.width), double(size.height)};
  const double scales[] = {resized.width / limits[0], resized.height / limits[1]};
  Detections result;
  for (size_t i = n * output.rows; i < (n + 1) * output.rows; ++i) {
    float const* box = output.boxes.data() + 4 * i;
    Detection detection{{}, output.scores[i], output.labels[i]};
    const bool finite = std::isfinite(detection.score) &&
                        std::all_of(box, box + 4, [](float side) { return std::isfinite(side); });
    if (!finite || detection.label < 0) continue;
    for (int side = 0; side < 4; ++side) {
      const double restored = std::clamp(box[side] / scales[side % 2], 0.0, limits[side % 2]);
      detection.box[side] = static_cast<float>(restored);
    }
    result.push_back(detection);
  }
  return result;
}

// Suppresses detections that overlap a better one of the same class. Best first.
inline Detections apply_nms(Detections kept, Nms const& nms) {
  sort_by_score(kept);
  if (nms.method == "soft") kept = soft_nms(kept, nms);
  if (nms.method == "hard") kept = hard_nms(kept, static_cast<float>(nms.iou_threshold));
  if (nms.max_per_img && kept.size() > *nms.max_per_img) kept.resize(*nms.max_per_img);
  return kept;
}

// Returns at most `top` detections with a score of at least `threshold`, best first.
inline Detections select(Detections detections, double threshold, std::optional<size_t> top) {
  sort_by_score(detections);
  std::erase_if(detections, [least = static_cast<float>(threshold)](Detection const& one) {
    return !(one.score >= least);
  });
  if (top && detections.size() > *top) detections.resize(*top);
  return detections;
}

}  // namespace codetr
