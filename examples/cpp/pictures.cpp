#include "pictures.h"

#include <algorithm>
#include <opencv2/core.hpp>
#include <opencv2/imgcodecs.hpp>
#include <set>

#include "errors.h"
#include "files.h"

namespace codetr {
namespace {

namespace fs = std::filesystem;

std::string lower(std::string text) {
  std::transform(text.begin(), text.end(), text.begin(),
                 [](unsigned char letter) { return static_cast<char>(std::tolower(letter)); });
  return text;
}

std::vector<fs::path> expand(std::string const& argument) {
  if (!fs::exists(argument)) throw UsageError(concat(argument, ": no such file"));
  if (!fs::is_directory(argument)) return {argument};
  static const std::set<std::string> kSuffixes{".jpg", ".jpeg", ".png", ".webp",
                                               ".bmp", ".tif",  ".tiff"};
  std::vector<fs::path> files;
  for (auto const& entry : fs::directory_iterator(argument)) {
    const bool hidden = entry.path().filename().string()[0] == '.';
    if (!hidden && kSuffixes.count(lower(entry.path().extension())) > 0) files.push_back(entry);
  }
  if (files.empty()) throw UsageError(concat(argument, ": the folder holds no picture"));
  std::sort(files.begin(), files.end());
  return files;
}

// Returns the folder that holds both folders.
fs::path shared_folder(fs::path const& first, fs::path const& second) {
  const auto end = std::mismatch(first.begin(), first.end(), second.begin(), second.end()).first;
  fs::path shared;
  std::for_each(first.begin(), end, [&](fs::path const& part) { shared /= part; });
  return shared;
}

// Returns <stem>.jpg, or <stem>_2.jpg, ... if it is taken. Some file systems ignore case.
std::string free_name(std::string const& stem, std::set<std::string>& taken) {
  std::string name = stem + ".jpg";
  for (int number = 2; !taken.insert(lower(name)).second; ++number) {
    name = concat(stem, "_", number, ".jpg");
  }
  return name;
}

// Returns whether a JPEG file ends before its end-of-image marker. OpenCV shows the rest as gray.
bool is_truncated_jpeg(std::vector<uint8_t> const& file) {
  size_t at = 2;
  while (at + 1 < file.size()) {
    const int marker = file[at + 1];
    if (file[at] != 0xff || marker == 0xff) {
      ++at;  // a byte of the entropy-coded data, or a fill byte
    } else if (marker == 0xd9) {
      return false;
    } else if (marker == 0 || marker == 1 || (marker >= 0xd0 && marker <= 0xd7)) {
      at += 2;  // a stuffed byte, or a marker without a segment
    } else if (at + 3 < file.size()) {
      at += 2 + (size_t{file[at + 2]} << 8 | file[at + 3]);
    } else {
      break;
    }
  }
  return true;
}

// Lays a picture [height, width] of BGRA on white.
cv::Mat lay_on_white(cv::Mat const& bgra) {
  cv::Mat image(bgra.size(), CV_8UC3);
  image.forEach<cv::Vec3b>([&](cv::Vec3b& target, int const* at) {
    auto const& pixel = bgra.at<cv::Vec4b>(at[0], at[1]);
    const int alpha = pixel[3];
    for (int channel = 0; channel < 3; ++channel) {
      const int sum = pixel[channel] * alpha + 255 * (255 - alpha);
      target[channel] = static_cast<uint8_t>((sum + 127) / 255);
    }
  });
  return image;
}

cv::Mat decode(std::vector<uint8_t> const& file) {
  const bool is_jpeg = file.size() > 2 && file[0] == 0xff && file[1] == 0xd8;
  if (is_jpeg && is_truncated_jpeg(file)) return {};
  cv::Mat image = cv::imdecode(file, cv::IMREAD_COLOR);
  if (image.empty() || is_jpeg) return image;
  // Only IMREAD_COLOR turns a picture upright, and only IMREAD_UNCHANGED keeps its transparency.
  cv::Mat stored = cv::imdecode(file, cv::IMREAD_UNCHANGED);
  if (stored.channels() != 4) return image;
  stored.convertTo(stored, CV_8U, stored.depth() == CV_16U ? 1.0 / 257 : 1.0);
  return lay_on_white(stored);
}

}  // namespace

std::vector<Picture> find_pictures(std::vector<std::string> const& arguments) {
  std::vector<Picture> pictures;
  std::vector<fs::path> absolute;
  std::set<fs::path> known;
  std::set<std::string> taken;
  fs::path shared;
  for (std::string const& argument : arguments) {
    for (fs::path const& path : expand(argument)) {
      if (!known.insert(fs::canonical(path)).second) continue;
      absolute.push_back(fs::absolute(path).lexically_normal());
      const fs::path folder = absolute.back().parent_path();
      shared = pictures.empty() ? folder : shared_folder(shared, folder);
      pictures.push_back({path, "", free_name(path.stem(), taken)});
    }
  }
  for (size_t i = 0; i < pictures.size(); ++i) {
    pictures[i].name = absolute[i].lexically_relative(shared).generic_string();
  }
  return pictures;
}

void check_picture(fs::path const& path) {
  std::error_code unknown;
  if (fs::file_size(path, unknown) == 0) {
    throw PictureError(concat(path.string(), ": the file is empty"));
  }
  if (!cv::haveImageReader(path)) {
    throw PictureError(concat(path.string(), ": not an image that OpenCV can read"));
  }
}

cv::Mat load_picture(fs::path const& path) {
  cv::Mat image;
  try {
    image = decode(read_file(path));
  } catch (cv::Exception const&) {
    // OpenCV refuses sizes above its limits by an exception.
  } catch (std::runtime_error const& error) {
    throw PictureError(error.what());
  }
  if (image.empty()) {
    throw PictureError(concat(path.string(), ": the image is truncated or damaged"));
  }
  return image;
}

void save_jpeg(cv::Mat const& image, fs::path const& path) {
  std::vector<uint8_t> file;
  cv::imencode(".jpg", image, file, {cv::IMWRITE_JPEG_QUALITY, 95});
  write_file(path, {reinterpret_cast<char const*>(file.data()), file.size()});
}

}  // namespace codetr
