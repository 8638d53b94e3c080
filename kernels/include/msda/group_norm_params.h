// The contract of group normalisation (group_norm_choice.h lists its kernels): sizes, type and
// pointers of one problem. Plain C++.
//
// Letters:
//   N, L     images, and levels: maps of each image, which are normalised one by one
//   S        cells of all levels of an image
//   C        channels of a cell, in G groups of neighbouring channels
#pragma once

#include <algorithm>

#include "msda/params.h"

namespace msda {

inline constexpr double kMaxEps = 1e30;
inline constexpr int kMostNormLevels = 8;

struct GroupNormProblem {
  int64_t batch_size = 0;               // N
  int64_t num_levels = 1;               // L
  int64_t cells[kMostNormLevels] = {};  // of each level of an image
  int64_t channels = 0;                 // C
  int64_t num_groups = 0;               // G
  double eps = 1e-5;                    // added to the variance
  DataType type = DataType::kFloat32;   // all tensors, but for a result in int8
  float next_scale = 0;                 // a step of the output in int8; 0: there is none

  bool empty() const { return batch_size == 0 || num_cells() == 0 || channels == 0; }
  int64_t num_cells() const {  // S
    int64_t sum = 0;
    for (int64_t level = 0; level < num_levels; ++level) sum += cells[level];
    return sum;
  }
  int64_t group_size() const { return channels / num_groups; }
};

struct GroupNormLevel {
  const void* x = nullptr;       // [N, cells, C]
  const void* weight = nullptr;  // [C]
  const void* bias = nullptr;    // [C]
};

// Tensors are contiguous. Pointers need no more alignment than their elements.
struct GroupNormArguments {
  GroupNormLevel levels[kMostNormLevels];
  void* output = nullptr;     // [N, S, C]: of an image, one level after the other
  void* quantized = nullptr;  // [N, S, C] int8: output / next_scale; or none
  void* work = nullptr;       // group_norm_work(problem) bytes, aligned to 16
};

// What kernel `vectors` does with a problem, see group_norm_vectors.cuh.
inline constexpr int kGroupNormThreads = 512;
inline constexpr int64_t kGroupNormManyVectors = 128;  // of a thread
inline constexpr int64_t kGroupNormMostParts = 256;    // of an image; each is the work of a block

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

// Cells of a part, the work of a block, on a GPU with this number of multiprocessors. All images
// together have about one block a multiprocessor, or two where the threads of one would have many
// vectors. A part has a cell for each row of threads.
inline int64_t group_norm_part(const GroupNormProblem& problem, int64_t multiprocessors) {
  const int64_t rows = group_norm_rows(problem);
  const int64_t vectors = problem.batch_size * problem.num_cells() / (rows * multiprocessors);
  const int64_t blocks = vectors > kGroupNormManyVectors ? 2 * multiprocessors : multiprocessors;
  const int64_t share = std::min(blocks / problem.batch_size, kGroupNormMostParts);
  // Each level but one may end with a part that is not whole.
  const int64_t whole = std::max<int64_t>(1, share - problem.num_levels + 1);
  return std::max(rows, (problem.num_cells() + whole - 1) / whole);
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
  if (problem.num_levels < 1 || problem.num_levels > kMostNormLevels) {
    return "levels: should be 1 to " + std::to_string(kMostNormLevels) + ", got " +
           std::to_string(problem.num_levels);
  }
  if (problem.channels % problem.num_groups != 0) {
    return "x: C should be a multiple of num_groups = " + std::to_string(problem.num_groups) +
           ", got " + std::to_string(problem.channels);
  }
  // The kernels count cells, channels, and groups of all images in 32 bits.
  constexpr int64_t kLimit = INT32_MAX / 8;
  if (problem.num_cells() > kLimit || problem.channels > kLimit || problem.batch_size > kLimit ||
      problem.num_groups > kLimit ||
      problem.batch_size * std::max(problem.num_groups, kGroupNormMostParts) > kLimit) {
    return "x: cells of an image, C, N*num_groups and 256*N should each be at most 2^28 - 1, got "
           "N=" +
           std::to_string(problem.batch_size) + " cells=" + std::to_string(problem.num_cells()) +
           " C=" + std::to_string(problem.channels) +
           " num_groups=" + std::to_string(problem.num_groups);
  }
  return problem.next_scale == 0 ? "" : check_scale("next_scale", problem.next_scale);
}

}  // namespace msda
