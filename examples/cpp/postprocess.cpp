#include "postprocess.h"

#include <algorithm>
#include <cmath>

namespace codetr {
namespace {

float area(Detection const& detection) {
  auto const& [x1, y1, x2, y2] = detection.box;
  return (x2 - x1) * (y2 - y1);
}

// Returns 0 between classes and if both boxes are empty.
float class_wise_iou(Detection const& first, Detection const& second) {
  if (first.label != second.label) return 0;
  auto const &a = first.box, &b = second.box;
  const float width = std::min(a[2], b[2]) - std::max(a[0], b[0]);
  const float height = std::min(a[3], b[3]) - std::max(a[1], b[1]);
  const float intersection = std::max(width, 0.0F) * std::max(height, 0.0F);
  const float both = area(first) + area(second) - intersection;
  return both > 0 ? intersection / both : 0;
}

template <class Predicate>
void drop_if(Detections& detections, Predicate predicate) {
  detections.erase(std::remove_if(detections.begin(), detections.end(), predicate),
                   detections.end());
}

void sort_by_score(Detections& detections) {
  std::stable_sort(detections.begin(), detections.end(),
                   [](Detection const& a, Detection const& b) { return a.score > b.score; });
}

Detections hard_nms(Detections const& sorted, float threshold) {
  Detections kept;
  for (Detection const& candidate : sorted) {
    const bool suppressed = std::any_of(kept.begin(), kept.end(), [&](Detection const& better) {
      return class_wise_iou(better, candidate) > threshold;
    });
    if (!suppressed) kept.push_back(candidate);
  }
  return kept;
}

// Returns the factor on a score if a better detection with this overlap is kept.
float soft_weight(float iou, Nms const& nms) {
  if (nms.gaussian) return std::exp(-(iou * iou) / static_cast<float>(nms.sigma));
  return iou >= static_cast<float>(nms.iou_threshold) ? 1 - iou : 1;
}

// As in mmcv, the first detection is kept whatever its score.
Detections soft_nms(Detections alive, Nms const& nms) {
  const auto min_score = static_cast<float>(nms.min_score);
  Detections kept;
  while (!alive.empty()) {
    const auto best =
        std::max_element(alive.begin(), alive.end(),
                         [](Detection const& a, Detection const& b) { return a.score < b.score; });
    kept.push_back(*best);
    alive.erase(best);
    for (Detection& other : alive) {
      other.score *= soft_weight(class_wise_iou(kept.back(), other), nms);
    }
    drop_if(alive, [&](Detection const& other) { return !(other.score >= min_score); });
  }
  return kept;
}

}  // namespace

Detections restore(Output const& output, size_t n, cv::Size size, cv::Size resized) {
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

Detections apply_nms(Detections kept, Nms const& nms) {
  sort_by_score(kept);
  if (nms.method == "soft") kept = soft_nms(kept, nms);
  if (nms.method == "hard") kept = hard_nms(kept, static_cast<float>(nms.iou_threshold));
  if (nms.max_per_img && kept.size() > *nms.max_per_img) kept.resize(*nms.max_per_img);
  return kept;
}

Detections select(Detections detections, double threshold, std::optional<size_t> top) {
  sort_by_score(detections);
  const auto least = static_cast<float>(threshold);
  drop_if(detections, [&](Detection const& one) { return !(one.score >= least); });
  if (top && detections.size() > *top) detections.resize(*top);
  return detections;
}

}  // namespace codetr
