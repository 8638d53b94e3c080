// The contract of image input (image_input.cuh): sizes, colours and pointers of one image on its
// way into a network's input. Plain C++.
//
// The kernel resizes the image to height x width, normalises it, and writes it into the upper left
// corner of the target. The rest of the target becomes zero.
#pragma once

#include "msda/params.h"

namespace msda {

inline constexpr int64_t kMaxImageSide = 1 << 17;  // pixels

struct ImageInputProblem {
  int64_t image_height = 0;
  int64_t image_width = 0;
  int64_t row_bytes = 0;  // from a row of the image to the next
  int64_t height = 0;     // of the resized image
  int64_t width = 0;
  int64_t target_height = 0;
  int64_t target_width = 0;
  float mean[3] = {};  // of red, green and blue, 0 to 255
  float std[3] = {1.0f, 1.0f, 1.0f};
  bool bgr = false;  // the image's channels are blue, green, red, not red, green, blue
  DataType type = DataType::kFloat32;  // of the target, except float64
};

struct ImageInputArguments {
  const void* image = nullptr;  // uint8 [image_height, image_width, 3]
  void* target = nullptr;       // [3, target_height, target_width], contiguous: red, green, blue
};

// Returns one sentence about what is wrong with the problem, or an empty string.
inline std::string check(const ImageInputProblem& problem) {
  const auto size = [](int64_t height, int64_t width) {
    return std::to_string(height) + " x " + std::to_string(width);
  };
  const auto outside = [](int64_t side, int64_t most) { return side < 1 || side > most; };
  if (outside(problem.image_height, kMaxImageSide) || outside(problem.image_width, kMaxImageSide)) {
    return "image: height and width should be 1 to " + std::to_string(kMaxImageSide) + ", got " +
           size(problem.image_height, problem.image_width);
  }
  if (problem.row_bytes < 3 * problem.image_width) {
    return "image: a row of " + std::to_string(problem.image_width) +
           " pixels should have 3 bytes a pixel, got " + std::to_string(problem.row_bytes);
  }
  if (outside(problem.target_height, kMaxImageSide) ||
      outside(problem.target_width, kMaxImageSide)) {
    return "target: height and width should be 1 to " + std::to_string(kMaxImageSide) + ", got " +
           size(problem.target_height, problem.target_width);
  }
  if (outside(problem.height, problem.target_height) ||
      outside(problem.width, problem.target_width)) {
    return "size: should lie within the target of " +
           size(problem.target_height, problem.target_width) + ", got " +
           size(problem.height, problem.width);
  }
  for (float std : problem.std) {
    if (!(std > 0)) return "std: should be above 0, got " + std::to_string(std);
  }
  if (problem.type == DataType::kFloat64) {
    return "target: should be float32, float16 or bfloat16, got float64";
  }
  return {};
}

}  // namespace msda
