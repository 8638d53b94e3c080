// PNG files through libpng. Of 16 bits the upper 8 are taken, but for gray, which is rounded: so
// does codetr.preprocess.
#include <png.h>

#include <cstring>
#include <stdexcept>

#include "codecs.h"

namespace codetr {
namespace {

struct Source {
  Bytes const* file;
  size_t position;
  char message[160];
};

[[noreturn]] void on_error(png_structp png, png_const_charp message) {
  auto* source = static_cast<Source*>(png_get_error_ptr(png));
  std::strncpy(source->message, message, sizeof(source->message) - 1);
  png_longjmp(png, 1);
}

void on_warning(png_structp, png_const_charp) {}

void read_bytes(png_structp png, png_bytep target, size_t count) {
  auto* source = static_cast<Source*>(png_get_io_ptr(png));
  if (count > source->file->size() - source->position) png_error(png, "it ends too early");
  std::memcpy(target, source->file->data() + source->position, count);
  source->position += count;
}

int orientation_of(png_structp png, png_infop info) {
  png_bytep exif = nullptr;
  png_uint_32 size = 0;
  if (png_get_eXIf_1(png, info, &size, &exif) != 0) {
    if (const int found = exif_orientation(exif, size)) return found;
  }
  png_textp texts = nullptr;
  int count = 0;
  png_get_text(png, info, &texts, &count);
  for (int i = 0; i < count; ++i) {
    if (std::strcmp(texts[i].key, "XML:com.adobe.xmp") != 0) continue;
    auto const* packet = reinterpret_cast<uint8_t const*>(texts[i].text);
    if (const int found = xmp_orientation(packet, std::strlen(texts[i].text))) return found;
  }
  return 0;
}

// What libpng is asked to give: 16-bit gray as it is, all else as 8-bit RGBA.
bool set_transforms(png_structp png, png_infop info) {
  const int bits = png_get_bit_depth(png, info);
  if (bits == 16 && png_get_color_type(png, info) == PNG_COLOR_TYPE_GRAY) return true;
  png_set_strip_16(png);
  png_set_expand(png);
  png_set_gray_to_rgb(png);
  png_set_add_alpha(png, 0xff, PNG_FILLER_AFTER);
  return false;
}

// [height, width] of big-endian 16 bits to 8: 65535 / 257 = 255 exactly.
void gray_to_rgb(uint8_t const* gray, uint8_t* rgb, size_t count) {
  for (size_t i = 0; i < count; ++i) {
    const unsigned value = gray[2 * i] * 256u + gray[2 * i + 1];
    std::memset(rgb + 3 * i, static_cast<int>((value + 128) / 257), 3);
  }
}

void lay_on_white(uint8_t const* rgba, uint8_t* rgb, size_t count) {
  for (size_t i = 0; i < count; ++i, rgba += 4, rgb += 3) {
    const unsigned alpha = rgba[3];
    for (int channel = 0; channel < 3; ++channel) {
      rgb[channel] =
          static_cast<uint8_t>((rgba[channel] * alpha + 255 * (255 - alpha) + 127) / 255);
    }
  }
}

struct Reader {
  ~Reader() { png_destroy_read_struct(&png, &info, &end); }

  png_structp png = nullptr;
  png_infop info = nullptr, end = nullptr;
  bool is_deep_gray = false;
  Bytes raw;
  std::vector<png_bytep> rows;
};

// False with a message in the source. Nothing here has a destructor: png_longjmp runs none.
bool decode(Reader& reader, Source& source, Decoded& result) {
  png_structp png = reader.png;
  if (setjmp(png_jmpbuf(png)) != 0) return false;
  png_set_read_fn(png, &source, read_bytes);
  png_read_info(png, reader.info);
  reader.is_deep_gray = set_transforms(png, reader.info);
  png_set_interlace_handling(png);
  png_read_update_info(png, reader.info);
  result.image.height = static_cast<int>(png_get_image_height(png, reader.info));
  result.image.width = static_cast<int>(png_get_image_width(png, reader.info));
  const size_t stride = png_get_rowbytes(png, reader.info);
  reader.raw.resize(stride * static_cast<size_t>(result.image.height));
  reader.rows.resize(static_cast<size_t>(result.image.height));
  for (size_t y = 0; y < reader.rows.size(); ++y) reader.rows[y] = reader.raw.data() + y * stride;
  png_read_image(png, reader.rows.data());
  png_read_end(png, reader.end);
  const int before = orientation_of(png, reader.info);
  const int after = before == 0 ? orientation_of(png, reader.end) : before;
  result.orientation = after == 0 ? 1 : after;
  return true;
}

}  // namespace

Decoded decode_png(Bytes const& file) {
  Source source{&file, 0, {}};
  Reader reader;
  reader.png = png_create_read_struct(PNG_LIBPNG_VER_STRING, &source, on_error, on_warning);
  if (reader.png == nullptr) throw std::runtime_error("libpng is of another version");
  reader.info = png_create_info_struct(reader.png);
  reader.end = png_create_info_struct(reader.png);
  Decoded result;
  const bool done =
      reader.info != nullptr && reader.end != nullptr && decode(reader, source, result);
  if (!done) throw std::runtime_error(source.message);
  Image& image = result.image;
  const size_t count = static_cast<size_t>(image.height) * image.width;
  image.pixels.resize(count * 3);
  if (reader.is_deep_gray) {
    gray_to_rgb(reader.raw.data(), image.pixels.data(), count);
  } else {
    lay_on_white(reader.raw.data(), image.pixels.data(), count);
  }
  return result;
}

}  // namespace codetr
