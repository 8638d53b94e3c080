// Draws detections on a picture as codetr.draw: the same colours, lines and places of labels, with
// a font of its own.
#pragma once

#include <string>
#include <vector>

#include "image.h"
#include "postprocess.h"

namespace codetr {

// The picture with boxes, class names and scores, the best score on top.
Image draw_detections(Image image, Detections const& detections,
                      std::vector<std::string> const& class_names);

}  // namespace codetr
