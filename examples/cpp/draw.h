// Draws detections on a picture.
#pragma once

#include <opencv2/core/mat.hpp>
#include <string>
#include <vector>

#include "postprocess.h"

namespace codetr {

// Draws boxes, class names and scores on an 8-bit BGR picture, the best score on top.
void draw_detections(cv::Mat& image, Detections const& detections,
                     std::vector<std::string> const& class_names);

}  // namespace codetr
