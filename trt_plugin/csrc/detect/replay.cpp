#include "replay.h"

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

  int batch() const override { return 1; }

  Output run(Batch const&) override {
    const size_t rows = scores_.shape[1];
    if (next_ == scores_.shape[0]) {
      throw UsageError(concat("--replay ", folder_.string(),
                              ": expected outputs for every picture, ", "got those of ", next_));
    }
    const auto part = [&](auto const& values, size_t size) {
      const auto start = values.begin() + static_cast<ptrdiff_t>(next_ * size);
      return std::decay_t<decltype(values)>(start, start + static_cast<ptrdiff_t>(size));
    };
    Output output{rows, part(boxes_.values, 4 * rows), part(scores_.values, rows),
                  part(labels_.values, rows)};
    ++next_;
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

void Dump::add(Batch const& input, Output const& output, size_t count) {
  append(images_, input.images, count,
         {3, static_cast<size_t>(input.height), static_cast<size_t>(input.width)});
  append(image_shapes_, input.image_shapes, count, {2});
  append(boxes_, output.boxes, count, {output.rows, 4});
  append(scores_, output.scores, count, {output.rows});
  append(labels_, output.labels, count, {output.rows});
}

void Dump::save(std::filesystem::path const& folder) const {
  save_npy(images_, folder / "images.npy");
  save_npy(image_shapes_, folder / "image_shapes.npy");
  save_npy(boxes_, folder / "boxes.npy");
  save_npy(scores_, folder / "scores.npy");
  save_npy(labels_, folder / "labels.npy");
}

}  // namespace codetr
