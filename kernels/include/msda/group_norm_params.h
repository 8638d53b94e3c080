// The contract of group normalisation (group_norm_choice.h lists its kernels): sizes, type and
// pointers of one problem. Plain C++.
//
// Letters:
//   N, H, W  images, and the rows and columns of their map
//   C        channels of a cell, in G groups of neighbouring channels
#pragma once

#include <algorithm>

#include "msda/params.h"

namespace msda {

inline constexpr double kMaxEps = 1e30;

struct GroupNormProblem {
  int64_t batch_size = 0;              // N
  int64_t height = 0;                  // H
  int64_t width = 0;                   // W
  int64_t channels = 0;                // C
  int64_t num_groups = 0;              // G
  double eps = 1e-5;                   // added to the variance
  DataType type = DataType::kFloat32;  // all tensors

  bool empty() const { return batch_size == 0 || num_cells() == 0 || channels == 0; }
  int64_t num_cells() const { return height * width; }  // of an image
  int64_t group_size() const { return channels / num_groups; }
};

// Tensors are contiguous. Pointers need no more alignment than their elements.
struct GroupNormArguments {
  const void* x = nullptr;       // [N, H, W, C]
  const void* weight = nullptr;  // [C]
  const void* bias = nullptr;    // [C]
  void* output = nullptr;        // [N, H, W, C]
  void* work = nullptr;          // group_norm_work(problem) bytes, aligned to 16
};

// What kernel `vectors` does with a problem, see group_norm_vectors.cuh.
inline constexpr int kGroupNormThreads = 1024;
inline constexpr int64_t kGroupNormMostParts = 256;  // of an image; each is the work of a block

// Vectors of 16 bytes in a cell, and cells that the threads of a block read at once.
inline int64_t group_norm_columns(const GroupNormProblem& problem) {
  return problem.channels * static_cast<int64_t>(size_of(problem.type)) / 16;
}
inline int64_t group_norm_rows(const GroupNormProblem& problem) {
  return kGroupNormThreads / group_norm_columns(problem);
}

// Whether every vector of 16 bytes lies in one group, and a block has a thread for each of a cell.
inline bool group_norm_fits_vectors(const GroupNormProblem& problem) {
  return problem.group_size() * static_cast<int64_t>(size_of(problem.type)) % 16 == 0 &&
         group_norm_columns(problem) <= kGroupNormThreads;
}

// Parts of an image on a GPU with this number of multiprocessors: one for each of the image's share
// of them, but none without a cell for each row of threads.
inline int64_t group_norm_parts(const GroupNormProblem& problem, int64_t multiprocessors) {
  const int64_t rows = group_norm_rows(problem);
  const int64_t share = std::max<int64_t>(1, multiprocessors / problem.batch_size);
  return std::min({share, kGroupNormMostParts, (problem.num_cells() + rows - 1) / rows});
}

// Bytes of work memory, which suffice on any GPU: the mean and the sum of squared differences of
// each part and group, in the type of the statistics. A larger map or batch never needs fewer.
inline size_t group_norm_work(const GroupNormProblem& problem) {
  const int64_t parts = problem.batch_size * std::min(kGroupNormMostParts, problem.num_cells());
  const size_t statistic = problem.type == DataType::kFloat64 ? 8 : 4;
  return static_cast<size_t>(2 * parts * problem.num_groups) * statistic;
}

// Returns one sentence about what is wrong with the problem, or an empty string.
inline std::string check(const GroupNormProblem& problem) {
  if (problem.num_groups < 1) {
    return "num_groups: should be 1 or more, got " + std::to_string(problem.num_groups);
  }
  if (!(problem.eps > 0 && problem.eps <= kMaxEps)) {
    return "eps: should be a finite number above 0, got " + std::to_string(problem.eps);
  }
  if (problem.channels % problem.num_groups != 0) {
    return "x: C should be a multiple of num_groups = " + std::to_string(problem.num_groups) +
           ", got " + std::to_string(problem.channels);
  }
  // The kernels count cells, channels, and groups of all images in 32 bits.
  constexpr int64_t kLimit = INT32_MAX / 8;
  if (problem.height > kLimit || problem.width > kLimit || problem.num_cells() > kLimit ||
      problem.channels > kLimit || problem.batch_size > kLimit || problem.num_groups > kLimit ||
      problem.batch_size * std::max(problem.num_groups, kGroupNormMostParts) > kLimit) {
    return "x: H*W, C, N*num_groups and 256*N should each be at most 2^28 - 1, got N=" +
           std::to_string(problem.batch_size) + " H=" + std::to_string(problem.height) +
           " W=" + std::to_string(problem.width) + " C=" + std::to_string(problem.channels) +
           " num_groups=" + std::to_string(problem.num_groups);
  }
  return {};
}

}  // namespace msda
