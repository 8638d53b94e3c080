#include "npy.h"

#include <algorithm>
#include <cstring>
#include <functional>
#include <numeric>
#include <regex>
#include <string>

#include "errors.h"
#include "files.h"

namespace codetr {
namespace {

// Magic, version 1.0, two bytes with the header's length, then the header as a Python literal.
constexpr char kMagic[] = "\x93NUMPY\x01";  // a zero byte follows
constexpr size_t kPrefix = 10, kAlignment = 64;

template <class Number>
constexpr char kType[4] = {'<', std::is_integral_v<Number> ? 'i' : 'f', '0' + sizeof(Number), 0};

size_t count(std::vector<size_t> const& shape) {
  return std::accumulate(shape.begin(), shape.end(), size_t{1}, std::multiplies<>());
}

std::vector<size_t> parse_shape(std::string const& text) {
  std::vector<size_t> shape;
  static const std::regex kNumber("[0-9]+");
  for (std::sregex_iterator it(text.begin(), text.end(), kNumber), end; it != end; ++it) {
    shape.push_back(std::stoull(it->str()));
  }
  return shape;
}

}  // namespace

template <class Number>
void save_npy(Array<Number> const& array, std::filesystem::path const& path) {
  std::string shape;
  for (size_t size : array.shape) shape += concat(size, ", ");
  std::string header =
      concat("{'descr': '", kType<Number>, "', 'fortran_order': False, 'shape': (", shape, "), }");
  header.append(kAlignment - 1 - (kPrefix + header.size()) % kAlignment, ' ');
  header += '\n';
  std::string file(kMagic, sizeof(kMagic));
  file += static_cast<char>(header.size() & 0xff);
  file += static_cast<char>(header.size() >> 8);
  file += header;
  file.append(reinterpret_cast<char const*>(array.values.data()),
              array.values.size() * sizeof(Number));
  write_file(path, file);
}

template <class Number>
Array<Number> load_npy(std::filesystem::path const& path) {
  const auto file = read_file(path);
  const auto refuse = [&](std::string const& got) -> UsageError {
    return UsageError(concat(path.string(), ": expected a .npy file of type ", kType<Number>,
                             ", row by row, got ", got));
  };
  if (file.size() < kPrefix || std::memcmp(file.data(), kMagic, sizeof(kMagic)) != 0) {
    throw refuse("another file");
  }
  const size_t start = kPrefix + file[8] + 256 * file[9];
  if (start > file.size()) throw refuse("one that is cut off");
  const std::string header(file.begin() + kPrefix, file.begin() + static_cast<ptrdiff_t>(start));
  static const std::regex kHeader(
      R"(\{'descr': '([^']*)', 'fortran_order': False, 'shape': \(([0-9, ]*)\),? *\} *\n)");
  std::smatch match;
  if (!std::regex_match(header, match, kHeader) || match[1] != kType<Number>) throw refuse(header);
  Array<Number> array{parse_shape(match[2]), {}};
  array.values.resize((file.size() - start) / sizeof(Number));
  const size_t expected = count(array.shape) * sizeof(Number);
  if (file.size() - start != expected) throw refuse("one that is cut off");
  std::copy(file.begin() + static_cast<ptrdiff_t>(start), file.end(),
            reinterpret_cast<uint8_t*>(array.values.data()));
  return array;
}

template void save_npy(Array<float> const&, std::filesystem::path const&);
template void save_npy(Array<int64_t> const&, std::filesystem::path const&);
template Array<float> load_npy(std::filesystem::path const&);
template Array<int64_t> load_npy(std::filesystem::path const&);

}  // namespace codetr
