// The contract of feed-forward blocks (feed_forward_choice.h lists their kernels): sizes, type and
// pointers of one problem. Plain C++.
//
// Letters:
//   M  rows of x: the product of all its sizes but the last
//   C  channels: columns of x
//   H  hidden numbers of a row
#pragma once

#include "msda/group_norm_params.h"  // for kMaxEps

namespace msda {

// A block of the plain kernels keeps a row in shared memory.
inline constexpr int kFeedForwardMostChannels = 1024;
inline constexpr int kFeedForwardMostHidden = 8192;

struct FeedForwardProblem {
  int64_t rows = 0;                    // M
  int64_t channels = 0;                // C
  int64_t hidden = 0;                  // H
  double eps = 1e-5;                   // added to the variance
  DataType type = DataType::kFloat16;  // all tensors: kFloat32, kFloat16 or kBFloat16

  bool empty() const { return rows == 0; }
};

// Tensors are contiguous. Pointers need no more alignment than their elements.
struct FeedForwardArguments {
  const void* x = nullptr;            // [M, C]
  const void* weight1 = nullptr;      // [H, C]
  const void* bias1 = nullptr;        // [H]
  const void* weight2 = nullptr;      // [C, H]
  const void* bias2 = nullptr;        // [C]
  const void* norm_weight = nullptr;  // [C]
  const void* norm_bias = nullptr;    // [C]
  void* output = nullptr;             // [M, C]
  void* work = nullptr;               // feed_forward_work(problem) bytes, aligned to 16
};

// Of kernels `hopper` and `split`.
inline constexpr int kHopperChannels = 256;
inline constexpr int kHopperMostHidden = 2048;

// How kernel `split` cuts a problem, see feed_forward_split.cuh: a block multiplies 128 rows by a
// slice of the hidden layer. With more blocks, the sums of the slices take longer than the
// products.
inline constexpr int64_t kSplitMostRows = 2048;
inline constexpr int64_t kSplitRows = 128;
inline constexpr int64_t kSplitMostSlices = 16;
inline constexpr int64_t kSplitMostBlocks = 96;

// Slices of the hidden layer. Each has as many chunks of 64 numbers.
inline int64_t feed_forward_slices(const FeedForwardProblem& problem) {
  const int64_t chunks = problem.hidden / 64, tiles = (problem.rows + kSplitRows - 1) / kSplitRows;
  int64_t slices = 1;
  while (2 * slices <= kSplitMostSlices && chunks % (2 * slices) == 0 &&
         tiles * 2 * slices <= kSplitMostBlocks) {
    slices *= 2;
  }
  return slices;
}

// Bytes of work memory: a float for each slice, row and channel. Up to kSplitMostRows, more rows
// never need fewer.
inline size_t feed_forward_work(const FeedForwardProblem& problem) {
  const bool fits = problem.rows <= kSplitMostRows && problem.channels == kHopperChannels;
  if (!fits || size_of(problem.type) != 2) return 0;
  const int64_t rows = std::min(kSplitMostSlices * problem.rows, kSplitMostBlocks * kSplitRows);
  return static_cast<size_t>(rows * problem.channels) * sizeof(float);
}

// Checks eps and the sizes of a FeedForwardProblem or a QuantizedFeedForwardProblem. Returns one
// sentence about what is wrong, or an empty string.
template <typename Problem>
std::string check_feed_forward(const Problem& problem) {
  if (!(problem.eps > 0 && problem.eps <= kMaxEps)) {
    return "eps: should be a finite number above 0, got " + std::to_string(problem.eps);
  }
  // The kernels count rows in 32 bits.
  if (problem.rows > INT32_MAX / 8) {
    return "x: M should be at most 2^28 - 1, got M=" + std::to_string(problem.rows);
  }
  if (problem.channels < 1 || problem.channels > kFeedForwardMostChannels) {
    return "x: C should be 1 to " + std::to_string(kFeedForwardMostChannels) +
           ", got C=" + std::to_string(problem.channels);
  }
  if (problem.hidden < 1 || problem.hidden > kFeedForwardMostHidden) {
    return "weight1: H should be 1 to " + std::to_string(kFeedForwardMostHidden) +
           ", got H=" + std::to_string(problem.hidden);
  }
  return {};
}

// Returns one sentence about what is wrong with the problem, or an empty string.
inline std::string check(const FeedForwardProblem& problem) {
  if (problem.type == DataType::kFloat64) {
    return "x: should be float32, float16 or bfloat16, got float64";
  }
  return check_feed_forward(problem);
}

}  // namespace msda
