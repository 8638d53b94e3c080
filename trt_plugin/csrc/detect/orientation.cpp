// How a camera was held: EXIF's tag 0x0112, or XMP's tiff:Orientation; and undoing it.
#include <algorithm>
#include <string_view>
#include <utility>

#include "codecs.h"

namespace codetr {
namespace {

constexpr unsigned kTag = 0x0112, kShort = 3, kLong = 4;

// Reads numbers of a TIFF block; outside of it there are zeros.
struct Tiff {
  uint8_t const* data;
  size_t size;
  bool big_endian;

  unsigned byte(size_t at) const { return at < size ? data[at] : 0; }
  unsigned two(size_t at) const {
    return big_endian ? byte(at) << 8 | byte(at + 1) : byte(at + 1) << 8 | byte(at);
  }
  unsigned four(size_t at) const {
    return big_endian ? two(at) << 16 | two(at + 2) : two(at + 2) << 16 | two(at);
  }
};

int valid(unsigned orientation) {
  return orientation >= 1 && orientation <= 8 ? static_cast<int>(orientation) : 0;
}

}  // namespace

int exif_orientation(uint8_t const* data, size_t size) {
  if (size < 8) return 0;
  const Tiff tiff{data, size, data[0] == 'M'};
  const size_t directory = tiff.four(4);
  const unsigned count = tiff.two(directory);
  for (unsigned i = 0; i < count; ++i) {
    const size_t entry = directory + 2 + 12 * static_cast<size_t>(i);
    if (entry + 12 > size) break;
    if (tiff.two(entry) != kTag) continue;
    const unsigned type = tiff.two(entry + 2);
    if (type == kShort) return valid(tiff.two(entry + 8));
    if (type == kLong) return valid(tiff.four(entry + 8));
  }
  return 0;
}

int xmp_orientation(uint8_t const* data, size_t size) {
  static constexpr std::string_view kName = "tiff:Orientation";
  const std::string_view packet(reinterpret_cast<char const*>(data), size);
  for (size_t at = packet.find(kName); at != packet.npos; at = packet.find(kName, at + 1)) {
    std::string_view rest = packet.substr(at + kName.size());  // an attribute's or an element's
    if (rest.substr(0, 2) == "=\"") {
      rest.remove_prefix(2);
    } else if (rest.substr(0, 1) == ">") {
      rest.remove_prefix(1);
    } else {
      continue;
    }
    if (!rest.empty() && rest[0] >= '0' && rest[0] <= '9') return valid(rest[0] - '0');
  }
  return 0;
}

Image make_upright(Image image, int orientation) {
  if (orientation == 1) return image;
  // The orientation says which edges of the upright picture the stored first row and column are.
  const bool swapped = orientation >= 5;
  const bool from_right =
      orientation == 2 || orientation == 3 || orientation == 7 || orientation == 8;
  const bool from_bottom =
      orientation == 3 || orientation == 4 || orientation == 6 || orientation == 7;
  Image upright{swapped ? image.width : image.height, swapped ? image.height : image.width, {}};
  upright.pixels.resize(image.pixels.size());
  for (int y = 0; y < upright.height; ++y) {
    uint8_t* target = upright.row(y);
    for (int x = 0; x < upright.width; ++x, target += 3) {
      int source_y = swapped ? x : y, source_x = swapped ? y : x;
      if (from_right) source_x = image.width - 1 - source_x;
      if (from_bottom) source_y = image.height - 1 - source_y;
      std::copy_n(image.row(source_y) + static_cast<size_t>(source_x) * 3, 3, target);
    }
  }
  return upright;
}

}  // namespace codetr
