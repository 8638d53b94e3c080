// A picture, and reading and writing it.
#pragma once

#include <cstdint>
#include <filesystem>
#include <stdexcept>
#include <vector>

namespace codetr {

// A file that is no picture, is damaged, or of a kind that is not read. One line, the path first.
struct ImageError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

struct Image {
  int height = 0;
  int width = 0;
  std::vector<uint8_t> pixels;  // [height, width, 3], RGB

  uint8_t const* row(int y) const { return pixels.data() + static_cast<size_t>(y) * width * 3; }
  uint8_t* row(int y) { return pixels.data() + static_cast<size_t>(y) * width * 3; }
};

// Reads a JPEG or PNG file as a viewer shows it, pixel for pixel as codetr.preprocess.load_image
// does: EXIF rotation applied, any colour type turned into RGB, transparent pixels laid on white.
// Throws ImageError.
Image load_image(std::filesystem::path const& path);

// Looks at the beginning of a file only. Throws ImageError as load_image for a file that is missing
// or no picture.
void check_image(std::filesystem::path const& path);

// Writes a JPEG file without chroma subsampling, so that thin coloured lines stay sharp; whole or
// not at all. Throws std::runtime_error.
void save_jpeg(Image const& image, std::filesystem::path const& path);

}  // namespace codetr
