// The network's output to detections, as codetr.detect and codetr.postprocess: boxes back to the
// picture's own pixels, non-maximum suppression, threshold. All in float32 as there.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

namespace codetr {

struct Detection {
  std::array<float, 4> box;  // x1 y1 x2 y2 in pixels
  float score;
  int64_t label;
};
using Detections = std::vector<Detection>;

enum class NmsMethod { kSoft, kHard, kNone };
enum class Decay { kLinear, kGaussian };

// See codetr.postprocess.apply_nms, whose defaults these are.
struct Nms {
  NmsMethod method = NmsMethod::kSoft;
  double iou_threshold = 0.8;
  Decay decay = Decay::kLinear;
  double sigma = 0.5;
  double min_score = 1e-3;
  std::optional<size_t> max_per_img;
};

// The sizes of a picture: its own, and as the network saw it.
struct Sizes {
  int height, width;
  int64_t resized_height, resized_width;
};

// The rows of one picture that are detections: finite, and not padding (label -1). Their boxes, in
// pixels of the resized picture, are mapped back to the original and clipped to it.
//   boxes [count, 4], scores [count], labels [count]
Detections restore(float const* boxes, float const* scores, int64_t const* labels, size_t count,
                   Sizes const& sizes);

// Suppresses detections that overlap a better one of the same class. Best first.
Detections apply_nms(Detections const& detections, Nms const& nms);

// Those with a score of at least `threshold`, at most `top`, best first.
Detections select(Detections detections, double threshold, std::optional<size_t> top);

}  // namespace codetr
