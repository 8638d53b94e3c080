#include "postprocess.h"

#include <algorithm>
#include <cmath>
#include <numeric>

namespace codetr {
namespace {

float area(Detection const& detection) {
  auto const& [x1, y1, x2, y2] = detection.box;
  return (x2 - x1) * (y2 - y1);
}

// 0 between classes and where both boxes are empty.
float class_wise_iou(Detection const& first, Detection const& second) {
  if (first.label != second.label) return 0;
  const float width = std::min(first.box[2], second.box[2]) - std::max(first.box[0], second.box[0]);
  const float height =
      std::min(first.box[3], second.box[3]) - std::max(first.box[1], second.box[1]);
  const float intersection = std::max(width, 0.0F) * std::max(height, 0.0F);
  const float whole = area(first) + area(second) - intersection;
  return whole > 0 ? intersection / whole : 0;
}

std::vector<size_t> by_score(Detections const& detections) {
  std::vector<size_t> order(detections.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](size_t first, size_t second) {
    return detections[first].score > detections[second].score;
  });
  return order;
}

Detections sorted(Detections const& detections) {
  Detections result;
  for (size_t index : by_score(detections)) result.push_back(detections[index]);
  return result;
}

Detections hard_nms(Detections const& detections, float threshold) {
  Detections kept;
  for (Detection const& candidate : sorted(detections)) {
    const bool suppressed = std::any_of(kept.begin(), kept.end(), [&](Detection const& better) {
      return class_wise_iou(better, candidate) > threshold;
    });
    if (!suppressed) kept.push_back(candidate);
  }
  return kept;
}

// The factor on a score when a better detection with this overlap is kept.
float soft_weight(float iou, Nms const& nms) {
  if (nms.decay == Decay::kGaussian) return std::exp(-(iou * iou) / static_cast<float>(nms.sigma));
  return iou >= static_cast<float>(nms.iou_threshold) ? 1 - iou : 1;
}

// As in mmcv, the very first is kept whatever its score.
Detections soft_nms(Detections alive, Nms const& nms) {
  Detections kept;
  while (!alive.empty()) {
    const auto best = std::max_element(
        alive.begin(), alive.end(),
        [](Detection const& first, Detection const& second) { return first.score < second.score; });
    kept.push_back(*best);
    alive.erase(best);
    for (Detection& other : alive)
      other.score *= soft_weight(class_wise_iou(kept.back(), other), nms);
    alive.erase(std::remove_if(alive.begin(), alive.end(),
                               [&](Detection const& other) {
                                 return !(other.score >= static_cast<float>(nms.min_score));
                               }),
                alive.end());
  }
  return kept;
}

}  // namespace

Detections restore(float const* boxes, float const* scores, int64_t const* labels, size_t count,
                   Sizes const& sizes) {
  const double scale_x = static_cast<double>(sizes.resized_width) / sizes.width;
  const double scale_y = static_cast<double>(sizes.resized_height) / sizes.height;
  Detections result;
  for (size_t i = 0; i < count; ++i) {
    float const* box = boxes + 4 * i;
    const bool finite = std::isfinite(scores[i]) &&
                        std::all_of(box, box + 4, [](float side) { return std::isfinite(side); });
    if (!finite || labels[i] < 0) continue;
    Detection detection{{}, scores[i], labels[i]};
    for (int side = 0; side < 4; ++side) {
      const bool is_x = side % 2 == 0;
      const double restored = box[side] / (is_x ? scale_x : scale_y);
      detection.box[side] =
          static_cast<float>(std::clamp<double>(restored, 0, is_x ? sizes.width : sizes.height));
    }
    result.push_back(detection);
  }
  return result;
}

Detections apply_nms(Detections const& detections, Nms const& nms) {
  Detections kept;
  switch (nms.method) {
    case NmsMethod::kSoft:
      kept = soft_nms(detections, nms);
      break;
    case NmsMethod::kHard:
      kept = hard_nms(detections, static_cast<float>(nms.iou_threshold));
      break;
    case NmsMethod::kNone:
      kept = sorted(detections);
      break;
  }
  if (nms.max_per_img && kept.size() > *nms.max_per_img) kept.resize(*nms.max_per_img);
  return kept;
}

Detections select(Detections detections, double threshold, std::optional<size_t> top) {
  Detections result = sorted(detections);
  const auto least = static_cast<float>(threshold);
  result.erase(std::remove_if(result.begin(), result.end(),
                              [&](Detection const& one) { return !(one.score >= least); }),
               result.end());
  if (top && result.size() > *top) result.resize(*top);
  return result;
}

}  // namespace codetr
