#include "recorded.h"

#include <cstdio>
#include <cstring>

#include "errors.h"
#include "files.h"

namespace codetr {
namespace {

namespace fs = std::filesystem;
using Sides = std::vector<size_t>;

fs::path file_of(fs::path const& folder, char const* name, size_t run) {
  return folder / concat(name, "_", run, ".npy");
}

// A .npy file of version 1.0 begins with 8 bytes and the length of its header.
constexpr size_t kPrefix = 10, kAlignment = 64;

template <class Number>
std::string header_start() {
  return concat("{'descr': '", std::is_integral_v<Number> ? "<i" : "<f", sizeof(Number),
                "', 'fortran_order': False, 'shape': (");
}

template <class Number>
void save_npy(fs::path const& path, Sides const& shape, std::vector<Number> const& values) {
  std::string header = header_start<Number>();
  for (size_t side : shape) header += concat(side, ", ");
  header += "), }";
  header.append(kAlignment - 1 - (kPrefix + header.size()) % kAlignment, ' ');
  header += '\n';
  std::string file("\x93NUMPY\x01\x00", 8);
  file += {static_cast<char>(header.size() & 0xff), static_cast<char>(header.size() >> 8)};
  file += header;
  file.append(reinterpret_cast<char const*>(values.data()), values.size() * sizeof(Number));
  write_file(path, file);
}

// Reads an array [count, K] or [count, K, 4]. Sets K.
template <class Number>
std::vector<Number> load_npy(fs::path const& path, int count, size_t& rows) {
  const std::string file = read_file(path), start = header_start<Number>();
  const size_t shape_at = file.find(start) + start.size(), end = file.find('\n', kPrefix);
  int found = 0;
  size_t last = 1;
  const bool is_npy =
      file.compare(kPrefix, start.size(), start) == 0 && end != file.npos &&
      std::sscanf(file.c_str() + shape_at, "%d, %zu, %zu", &found, &rows, &last) > 1;
  std::vector<Number> values(is_npy ? found * rows * last : 0);
  if (found != count || file.size() - end - 1 != values.size() * sizeof(Number)) {
    throw UsageError(concat(path.string(), ": expected an array of ", count, " pictures, ", start));
  }
  std::memcpy(values.data(), file.data() + end + 1, file.size() - end - 1);
  return values;
}

class Replay final : public Network {
 public:
  explicit Replay(fs::path const& folder) : folder_(folder) {}

  Output run(Batch const& input) override {
    Output output;
    const auto file = [&](char const* name) { return file_of(folder_, name, run_); };
    output.boxes = load_npy<float>(file("boxes"), input.count, output.rows);
    output.scores = load_npy<float>(file("scores"), input.count, output.rows);
    output.labels = load_npy<int64_t>(file("labels"), input.count, output.rows);
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

}  // namespace

void dump_run(fs::path const& folder, size_t run, Batch const& input, Output const& output) {
  const auto file = [&](char const* name) { return file_of(folder, name, run); };
  const auto count = static_cast<size_t>(input.count), rows = output.rows;
  const auto height = static_cast<size_t>(input.height), width = static_cast<size_t>(input.width);
  save_npy(file("images"), {count, 3, height, width}, input.images);
  save_npy(file("image_shapes"), {count, 2}, input.image_shapes);
  save_npy(file("boxes"), {count, rows, 4}, output.boxes);
  save_npy(file("scores"), {count, rows}, output.scores);
  save_npy(file("labels"), {count, rows}, output.labels);
}

std::unique_ptr<Network> replay(fs::path const& folder) { return std::make_unique<Replay>(folder); }

}  // namespace codetr
