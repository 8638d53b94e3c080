// JPEG files through libjpeg-turbo, with its defaults: what Pillow does, so the pixels are the
// same.
#include <cstddef>
#include <cstdio>  // before jpeglib.h, which uses FILE
// clang-format off
#include <jpeglib.h>
#include <jerror.h>
// clang-format on

#include <csetjmp>
#include <cstdlib>
#include <cstring>
#include <stdexcept>

#include "codecs.h"
#include "errors.h"

namespace codetr {
namespace {

// libjpeg calls error_exit, which must not return: it jumps back to the function that called.
struct ErrorManager {
  jpeg_error_mgr base;
  std::jmp_buf back;
  char message[JMSG_LENGTH_MAX];
};

[[noreturn]] void on_error(j_common_ptr info) {
  auto* errors = reinterpret_cast<ErrorManager*>(info->err);
  errors->base.format_message(info, errors->message);
  std::longjmp(errors->back, 1);
}

void on_message(j_common_ptr info, int level) {
  // A file that ends too early is an error; other damage is shown as well as it can be.
  if (level < 0 && info->err->msg_code == JWRN_JPEG_EOF) on_error(info);
}

template <class Info, auto destroy>
struct Session {
  Session() {
    info.err = jpeg_std_error(&errors.base);
    errors.base.error_exit = on_error;
    errors.base.emit_message = on_message;
  }
  ~Session() { destroy(&info); }

  Info info{};
  ErrorManager errors{};
};

bool starts_with(jpeg_saved_marker_ptr marker, char const* prefix, size_t size) {
  return marker->data_length > size && std::memcmp(marker->data, prefix, size) == 0;
}

int orientation_of(jpeg_saved_marker_ptr markers) {
  static constexpr char kExif[] = "Exif\0";  // two zero bytes follow the name
  static constexpr char kXmp[] = "http://ns.adobe.com/xap/1.0/";
  int xmp = 0;
  for (auto* marker = markers; marker != nullptr; marker = marker->next) {
    if (starts_with(marker, kExif, sizeof(kExif))) {
      const int found =
          exif_orientation(marker->data + sizeof(kExif), marker->data_length - sizeof(kExif));
      if (found != 0) return found;
    } else if (starts_with(marker, kXmp, sizeof(kXmp))) {
      xmp = xmp_orientation(marker->data + sizeof(kXmp), marker->data_length - sizeof(kXmp));
    }
  }
  return xmp == 0 ? 1 : xmp;
}

// value * scale / 255, rounded, for 0 to 255.
int scaled(int value, int scale) { return (value * scale + 127) / 255; }

// CMYK as Adobe writes it, inverted, to RGB.
void cmyk_to_rgb(uint8_t const* cmyk, int width, uint8_t* rgb) {
  for (int x = 0; x < width; ++x, cmyk += 4, rgb += 3) {
    for (int channel = 0; channel < 3; ++channel) {
      rgb[channel] = static_cast<uint8_t>(cmyk[3] - scaled(255 - cmyk[channel], cmyk[3]));
    }
  }
}

// False with a message in `errors`. Nothing here has a destructor: longjmp runs none.
bool decode(Bytes const& file, jpeg_decompress_struct& info, ErrorManager& errors, Decoded& result,
            Bytes& cmyk) {
  if (setjmp(errors.back) != 0) return false;
  jpeg_create_decompress(&info);
  jpeg_mem_src(&info, file.data(), static_cast<unsigned long>(file.size()));
  jpeg_save_markers(&info, JPEG_APP0 + 1, 0xffff);
  jpeg_read_header(&info, TRUE);
  const bool is_cmyk = info.num_components == 4;
  info.out_color_space = is_cmyk ? JCS_CMYK : JCS_RGB;
  result.orientation = orientation_of(info.marker_list);
  jpeg_start_decompress(&info);
  Image& image = result.image;
  image.height = static_cast<int>(info.output_height);
  image.width = static_cast<int>(info.output_width);
  image.pixels.resize(static_cast<size_t>(image.height) * image.width * 3);
  if (is_cmyk) cmyk.resize(static_cast<size_t>(image.width) * 4);
  while (info.output_scanline < info.output_height) {
    uint8_t* row = image.row(static_cast<int>(info.output_scanline));
    JSAMPROW target = is_cmyk ? cmyk.data() : row;
    jpeg_read_scanlines(&info, &target, 1);
    if (is_cmyk) cmyk_to_rgb(cmyk.data(), image.width, row);
  }
  jpeg_finish_decompress(&info);
  return true;
}

bool encode(Image const& image, int quality, jpeg_compress_struct& info, ErrorManager& errors,
            unsigned char** buffer, unsigned long* size) {
  if (setjmp(errors.back) != 0) return false;
  jpeg_create_compress(&info);
  jpeg_mem_dest(&info, buffer, size);
  info.image_width = static_cast<JDIMENSION>(image.width);
  info.image_height = static_cast<JDIMENSION>(image.height);
  info.input_components = 3;
  info.in_color_space = JCS_RGB;
  jpeg_set_defaults(&info);
  jpeg_set_quality(&info, quality, TRUE);
  info.comp_info[0].h_samp_factor = info.comp_info[0].v_samp_factor = 1;
  jpeg_start_compress(&info, TRUE);
  while (info.next_scanline < info.image_height) {
    auto* row = const_cast<uint8_t*>(image.row(static_cast<int>(info.next_scanline)));
    jpeg_write_scanlines(&info, &row, 1);
  }
  jpeg_finish_compress(&info);
  return true;
}

}  // namespace

Decoded decode_jpeg(Bytes const& file) {
  Session<jpeg_decompress_struct, jpeg_destroy_decompress> session;
  Decoded result;
  Bytes cmyk;
  if (!decode(file, session.info, session.errors, result, cmyk)) {
    throw std::runtime_error(session.errors.message);
  }
  return result;
}

Bytes encode_jpeg(Image const& image, int quality) {
  Session<jpeg_compress_struct, jpeg_destroy_compress> session;
  unsigned char* buffer = nullptr;
  unsigned long size = 0;
  const bool done = encode(image, quality, session.info, session.errors, &buffer, &size);
  Bytes result;
  if (done) result.assign(buffer, buffer + size);
  std::free(buffer);
  if (!done) throw std::runtime_error(session.errors.message);
  return result;
}

}  // namespace codetr
