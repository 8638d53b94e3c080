// NumPy's .npy files: what --dump writes and --replay reads.
#pragma once

#include <cstdint>
#include <filesystem>
#include <vector>

namespace codetr {

template <class Number>
struct Array {
  std::vector<size_t> shape;
  std::vector<Number> values;  // row by row
};

// Number: float (NumPy's float32) or int64_t (NumPy's int64). Reading throws UsageError naming the
// file if it holds another type.
template <class Number>
void save_npy(Array<Number> const& array, std::filesystem::path const& path);

template <class Number>
Array<Number> load_npy(std::filesystem::path const& path);

}  // namespace codetr
