// The two file formats. Each decoder gives pixels as stored, upright or not; what is wrong with a
// file is a std::runtime_error without its path.
#pragma once

#include <cstdint>
#include <vector>

#include "image.h"

namespace codetr {

using Bytes = std::vector<uint8_t>;

struct Decoded {
  Image image;
  int orientation = 1;  // of EXIF or XMP, 1 to 8
};

inline bool is_jpeg(Bytes const& start) {
  return start.size() >= 3 && start[0] == 0xff && start[1] == 0xd8 && start[2] == 0xff;
}

inline bool is_png(Bytes const& start) {
  static constexpr uint8_t kSignature[] = {0x89, 'P', 'N', 'G', '\r', '\n', 0x1a, '\n'};
  if (start.size() < sizeof(kSignature)) return false;
  for (size_t i = 0; i < sizeof(kSignature); ++i) {
    if (start[i] != kSignature[i]) return false;
  }
  return true;
}

Decoded decode_jpeg(Bytes const& file);
Decoded decode_png(Bytes const& file);
Bytes encode_jpeg(Image const& image, int quality);

// The orientation that EXIF data (from the TIFF header on) or an XMP packet gives, 0 for none.
int exif_orientation(uint8_t const* data, size_t size);
int xmp_orientation(uint8_t const* data, size_t size);

// Turns and mirrors a picture from an orientation to upright.
Image make_upright(Image image, int orientation);

}  // namespace codetr
