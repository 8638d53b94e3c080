#include "replay.h"

#include <algorithm>

#include "errors.h"

namespace codetr {
namespace {

class Replay final : public Network {
 public:
  explicit Replay(std::filesystem::path const& folder)
      : folder_(folder),
        boxes_(load_npy<float>(folder / "boxes.npy")),
        scores_(load_npy<float>(folder / "scores.npy")),
        labels_(load_npy<int64_t>(folder / "labels.npy")) {
    auto expected = scores_.shape;
    const bool fine = expected.size() == 2 && labels_.shape == expected;
    expected.push_back(4);
    if (!fine || boxes_.shape != expected) {
      throw UsageError(concat("--replay ", folder.string(), ": expected boxes [N, K, 4], scores ",
                              "[N, K] and labels [N, K], got others"));
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
      const auto start = values.begin() + static_cast<ptrdiff_t>(next_ * size);
      return std::decay_t<decltype(values)>(start, start + static_cast<ptrdiff_t>(count * size));
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
  std::filesystem::path folder_;
  Array<float> boxes_, scores_;
  Array<int64_t> labels_;
  size_t next_ = 0;
};

template <class Number>
void append(Array<Number>& array, std::vector<Number> const& values, size_t count,
            std::vector<size_t> const& shape) {
  size_t size = count;
  for (size_t side : shape) size *= side;
  if (array.shape.empty()) {
    array.shape = {0};
    array.shape.insert(array.shape.end(), shape.begin(), shape.end());
  }
  array.shape[0] += count;
  array.values.insert(array.values.end(), values.begin(),
                      values.begin() + static_cast<ptrdiff_t>(size));
}

}  // namespace

std::unique_ptr<Network> replay(std::filesystem::path const& folder) {
  return std::make_unique<Replay>(folder);
}

void Dump::add(Batch const& input, Output const& output) {
  const auto count = static_cast<size_t>(input.pictures);
  const auto end = input.images.begin() + static_cast<ptrdiff_t>(count * input.image_size());
  images_.push_back({count,
                     static_cast<size_t>(input.height),
                     static_cast<size_t>(input.width),
                     {input.images.begin(), end}});
  for (size_t i = 0; i < count; ++i) {
    append(input_shapes_, {input.count, input.height, input.width}, 1, {3});
  }
  append(image_shapes_, input.image_shapes, count, {2});
  append(boxes_, output.boxes, count, {output.rows, 4});
  append(scores_, output.scores, count, {output.rows});
  append(labels_, output.labels, count, {output.rows});
}

Array<float> Dump::all_images() const {
  size_t count = 0, height = 0, width = 0;
  for (Images const& run : images_) {
    count += run.count;
    height = std::max(height, run.height);
    width = std::max(width, run.width);
  }
  Array<float> all{{count, 3, height, width}, std::vector<float>(count * 3 * height * width)};
  auto plane = all.values.begin();
  for (Images const& run : images_) {
    auto row = run.pixels.begin();
    for (size_t i = 0; i < run.count * 3; ++i, plane += static_cast<ptrdiff_t>(height * width)) {
      for (size_t y = 0; y < run.height; ++y, row += static_cast<ptrdiff_t>(run.width)) {
        std::copy_n(row, run.width, plane + static_cast<ptrdiff_t>(y * width));
      }
    }
  }
  return all;
}

void Dump::save(std::filesystem::path const& folder) const {
  save_npy(all_images(), folder / "images.npy");
  save_npy(input_shapes_, folder / "input_shapes.npy");
  save_npy(image_shapes_, folder / "image_shapes.npy");
  save_npy(boxes_, folder / "boxes.npy");
  save_npy(scores_, folder / "scores.npy");
  save_npy(labels_, folder / "labels.npy");
}

}  // namespace codetr
