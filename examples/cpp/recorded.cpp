#include "recorded.h"

#include <algorithm>
#include <cstring>
#include <regex>

#include "errors.h"
#include "files.h"

namespace codetr {
namespace {

namespace fs = std::filesystem;

// Before the header of a .npy file of version 1.0 there are these 8 bytes and the header's length.
constexpr std::string_view kMagic("\x93NUMPY\x01\x00", 8);
constexpr size_t kPrefix = 10, kAlignment = 64;

template <class Number>
struct Array {
  std::vector<size_t> shape;
  std::vector<Number> values;  // row by row
};

template <class Number>
std::string type_name() {
  return concat(std::is_integral_v<Number> ? "<i" : "<f", sizeof(Number));
}

template <class Number>
void save_npy(fs::path const& path, std::vector<size_t> const& shape,
              std::vector<Number> const& values) {
  std::string sides;
  for (size_t side : shape) sides += concat(side, ", ");
  std::string header = concat("{'descr': '", type_name<Number>(),
                              "', 'fortran_order': False, 'shape': (", sides, "), }");
  header.append(kAlignment - 1 - (kPrefix + header.size()) % kAlignment, ' ');
  header += '\n';
  std::string file(kMagic);
  file += static_cast<char>(header.size() & 0xff);
  file += static_cast<char>(header.size() >> 8);
  file += header;
  file.append(reinterpret_cast<char const*>(values.data()), values.size() * sizeof(Number));
  write_file(path, file);
}

template <class Number>
Array<Number> load_npy(fs::path const& path) {
  const auto bytes = read_file(path);
  const std::string file(bytes.begin(), bytes.end());
  static const std::regex kHeader(
      R"(\{'descr': '([^']*)', 'fortran_order': False, 'shape': \(([0-9, ]*)\),? *\} *\n)");
  const size_t start = file.find('\n', kPrefix) + 1;  // 0 if there is none
  const std::string header = start > kPrefix ? file.substr(kPrefix, start - kPrefix) : "";
  std::smatch match;
  const bool is_npy = std::string_view(file).substr(0, kMagic.size()) == kMagic &&
                      std::regex_match(header, match, kHeader) && match[1] == type_name<Number>();
  Array<Number> array;
  size_t count = 1;
  if (is_npy) {
    std::istringstream sides(std::regex_replace(match[2].str(), std::regex(","), " "));
    for (size_t side; sides >> side; count *= side) array.shape.push_back(side);
  }
  if (!is_npy || file.size() - start != count * sizeof(Number)) {
    throw UsageError(concat(path.string(), ": expected a whole .npy file of type ",
                            type_name<Number>(), " in C order"));
  }
  array.values.resize(count);
  std::memcpy(array.values.data(), file.data() + start, count * sizeof(Number));
  return array;
}

class Replay final : public Network {
 public:
  explicit Replay(fs::path const& folder)
      : folder_(folder),
        boxes_(load_npy<float>(folder / "boxes.npy")),
        scores_(load_npy<float>(folder / "scores.npy")),
        labels_(load_npy<int64_t>(folder / "labels.npy")) {
    auto expected = scores_.shape;
    const bool fine = expected.size() == 2 && labels_.shape == expected;
    expected.push_back(4);
    if (!fine || boxes_.shape != expected) {
      throw UsageError(concat("--replay ", folder.string(), ": expected boxes [N, K, 4], scores ",
                              "[N, K] and labels [N, K], got other shapes"));
    }
  }

  Output run(Batch const& input) override {
    const size_t rows = scores_.shape[1], count = static_cast<size_t>(input.pictures);
    if (next_ + count > scores_.shape[0]) {
      throw UsageError(concat("--replay ", folder_.string(),
                              ": expected outputs for every picture, got those of ",
                              scores_.shape[0]));
    }
    const auto part = [&](auto const& values, size_t size) {
      auto const* start = values.data() + next_ * size;
      return std::decay_t<decltype(values)>(start, start + count * size);
    };
    Output output{rows, part(boxes_.values, 4 * rows), part(scores_.values, rows),
                  part(labels_.values, rows)};
    next_ += count;
    return output;
  }

  std::vector<Samples> time(Batch const&, int) override {
    throw UsageError("--benchmark: needs a network to run, leave --replay out");
  }

 private:
  fs::path folder_;
  Array<float> boxes_, scores_;
  Array<int64_t> labels_;
  size_t next_ = 0;
};

}  // namespace

std::unique_ptr<Network> replay(fs::path const& folder) { return std::make_unique<Replay>(folder); }

void Dump::add(Batch const& input, Output const& output) { runs_.push_back({input, output}); }

void Dump::save(fs::path const& folder) const {
  size_t count = 0, height = 0, width = 0, rows = 0;
  for (auto const& [input, output] : runs_) {
    count += static_cast<size_t>(input.pictures);
    height = std::max(height, static_cast<size_t>(input.height));
    width = std::max(width, static_cast<size_t>(input.width));
    rows = output.rows;
  }
  std::vector<float> images(count * 3 * height * width), boxes, scores;
  std::vector<int64_t> input_shapes, image_shapes, labels;
  const auto append = [](auto& all, auto const& values, size_t size) {
    all.insert(all.end(), values.data(), values.data() + size);
  };
  float* plane = images.data();
  for (auto const& [input, output] : runs_) {
    float const* row = input.images.data();
    for (int i = 0; i < input.pictures * 3; ++i, plane += height * width) {
      for (int y = 0; y < input.height; ++y, row += input.width) {
        std::copy_n(row, input.width, plane + y * width);
      }
    }
    const auto own = static_cast<size_t>(input.pictures);
    for (size_t i = 0; i < own; ++i) {
      input_shapes.insert(input_shapes.end(), {input.count, input.height, input.width});
    }
    append(image_shapes, input.image_shapes, 2 * own);
    append(boxes, output.boxes, 4 * own * rows);
    append(scores, output.scores, own * rows);
    append(labels, output.labels, own * rows);
  }
  save_npy(folder / "images.npy", {count, 3, height, width}, images);
  save_npy(folder / "input_shapes.npy", {count, 3}, input_shapes);
  save_npy(folder / "image_shapes.npy", {count, 2}, image_shapes);
  save_npy(folder / "boxes.npy", {count, rows, 4}, boxes);
  save_npy(folder / "scores.npy", {count, rows}, scores);
  save_npy(folder / "labels.npy", {count, rows}, labels);
}

}  // namespace codetr
