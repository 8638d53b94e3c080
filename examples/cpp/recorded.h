// Runs of a network in .npy files: --dump writes them, --replay reads them.
#pragma once

#include <cstring>

#include "files.h"
#include "network.h"

namespace codetr {

inline fs::path file_of(fs::path const& folder, char const* name, size_t run) {
  return folder / concat(name, "_", run, ".npy");
}

// A .npy file of version 1.0 begins with 10 bytes, the last two of which are the length of its
// header, which a line ends.
template <class Number>
void save_npy(fs::path const& path, std::vector<size_t> const& shape,
              std::vector<Number> const& values) {
  std::string header = concat("{'descr': '", std::is_integral_v<Number> ? "<i" : "<f",
                              sizeof(Number), "', 'fortran_order': False, 'shape': (");
  for (size_t side : shape) header += concat(side, ", ");
  header += "), }";
  header.resize(117, ' ');
  std::string file = std::string("\x93NUMPY\x01\x00\x76\x00", 10) + header + '\n';
  file.append(reinterpret_cast<char const*>(values.data()), values.size() * sizeof(Number));
  write_file(path, file);
}

// Reads all numbers, whatever the shape.
template <class Number>
std::vector<Number> load_npy(fs::path const& path) {
  const std::string file = read_file(path);
  const size_t start = file.find('\n', 10) + 1;
  std::vector<Number> values((file.size() - start) / sizeof(Number));
  std::memcpy(values.data(), file.data() + start, values.size() * sizeof(Number));
  return values;
}

// A network that returns the outputs of such a folder, one run after the other.
// Its run throws an exception if a file is missing or has another size.
class Replay final : public Network {
 public:
  explicit Replay(fs::path const& folder) : folder_(folder) {}

  Output run(Batch const& input) override {
    const auto file = [&](char const* name) { return file_of(folder_, name, run_); };
    Output output{0, load_npy<float>(file("boxes")), load_npy<float>(file("scores")),
                  load_npy<int64_t>(file("labels"))};
    auto const& [rows, boxes, scores, labels] = output;
    if (labels.size() != scores.size() || boxes.size() != scores.size() * 4) {
      throw UsageError(concat("--replay ", folder_.string(), ": run ", run_,
                              ": expected float32 boxes [N, K, 4], float32 scores [N, K] and int64 "
                              "labels [N, K], got other sizes"));
    }
    output.rows = scores.size() / static_cast<size_t>(input.count);
    ++run_;
    return output;
  }

  std::vector<Samples> time(Batch const&, int) override {
    throw UsageError("--benchmark: needs a network to run, leave --replay out");
  }

 private:
  fs::path folder_;
  size_t run_ = 0;
};

// Writes the inputs and outputs of a run into a folder, <name>_<run>.npy for run 0, 1, 2, ...:
// images, image_shapes, boxes, scores and labels, in the shapes of Batch and Output.
inline void dump_run(fs::path const& folder, size_t run, Batch const& input, Output const& output) {
  const auto file = [&](char const* name) { return file_of(folder, name, run); };
  const auto count = static_cast<size_t>(input.count), rows = output.rows;
  const auto height = static_cast<size_t>(input.height), width = static_cast<size_t>(input.width);
  save_npy(file("images"), {count, 3, height, width}, input.images());
  save_npy(file("image_shapes"), {count, 2}, input.image_shapes);
  save_npy(file("boxes"), {count, rows, 4}, output.boxes);
  save_npy(file("scores"), {count, rows}, output.scores);
  save_npy(file("labels"), {count, rows}, output.labels);
}

}  // namespace codetr
