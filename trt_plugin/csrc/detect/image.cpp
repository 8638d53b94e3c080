#include "image.h"

#include <exception>
#include <fstream>

#include "codecs.h"
#include "errors.h"
#include "files.h"

namespace codetr {
namespace {

constexpr int kQuality = 92;

void check_start(std::filesystem::path const& path, Bytes const& start) {
  if (start.empty()) throw ImageError(concat(path.string(), ": the file is empty"));
  if (!is_jpeg(start) && !is_png(start)) {
    throw ImageError(concat(path.string(), ": expected a JPEG or PNG file, got another kind"));
  }
}

}  // namespace

void check_image(std::filesystem::path const& path) {
  if (!std::filesystem::exists(path)) throw ImageError(concat(path.string(), ": no such file"));
  if (std::filesystem::is_directory(path)) {
    throw ImageError(concat(path.string(), ": is a folder, not an image"));
  }
  std::ifstream file(path, std::ios::binary);
  if (!file) throw ImageError(concat(path.string(), ": cannot be read"));
  Bytes start(8);
  file.read(reinterpret_cast<char*>(start.data()), static_cast<std::streamsize>(start.size()));
  start.resize(static_cast<size_t>(file.gcount()));
  check_start(path, start);
}

Image load_image(std::filesystem::path const& path) {
  check_image(path);
  const Bytes file = read_file(path);
  check_start(path, file);
  try {
    Decoded decoded = is_jpeg(file) ? decode_jpeg(file) : decode_png(file);
    return make_upright(std::move(decoded.image), decoded.orientation);
  } catch (std::exception const& error) {
    throw ImageError(
        concat(path.string(), ": the image is truncated or damaged (", error.what(), ")"));
  }
}

void save_jpeg(Image const& image, std::filesystem::path const& path) {
  const Bytes file = encode_jpeg(image, kQuality);
  write_file(path, file.data(), file.size());
}

}  // namespace codetr
