// The contract of the search for the largest numbers (top_k_choice.h lists its kernels): sizes and
// pointers of one problem. Plain C++.
//
// Letters:
//   N, S  rows, and the float numbers of a row
//   K     numbers to find in each row
#pragma once

#include <algorithm>

#include "msda/params.h"

namespace msda {

struct TopKProblem {
  int64_t rows = 0;   // N
  int64_t size = 0;   // S
  int64_t count = 0;  // K

  bool empty() const { return rows == 0 || count == 0; }
};

// Tensors are contiguous. Pointers need no more alignment than their elements.
struct TopKArguments {
  const float* x = nullptr;    // [N, S]
  int32_t* indices = nullptr;  // [N, K], of the largest number first, of the first of equal numbers
  void* work = nullptr;        // top_k_work(problem) bytes, aligned to 8
};

// What kernel `parts` does with a problem, see top_k_parts.cuh.
inline constexpr int kTopKThreads = 1024;
inline constexpr int64_t kTopKItems[] = {4, 8,
                                         16};  // numbers of a thread, for which it is compiled

struct TopKPlan {
  int64_t parts = 0;        // of a row, each searched by a block; 0: the kernel cannot run
  int64_t items = 0;        // numbers of a thread in the search of parts
  int64_t final_items = 0;  // and in the search of what the parts have found; 0: there is one part

  int64_t part_size(const TopKProblem& problem) const { return (problem.size + parts - 1) / parts; }
};

// Returns a plan of one part where a block holds a row, else that with the least work for a thread.
inline TopKPlan top_k_plan(const TopKProblem& problem) {
  TopKPlan best;
  if (problem.count > kTopKThreads) return best;
  for (const int64_t items : kTopKItems) {
    if (problem.size <= kTopKThreads * items) return {1, items, 0};
  }
  for (const int64_t items : kTopKItems) {
    const int64_t parts = (problem.size + kTopKThreads * items - 1) / (kTopKThreads * items);
    for (const int64_t more : kTopKItems) {
      const bool holds = parts * problem.count <= kTopKThreads * more;
      const bool better = best.parts == 0 || items + more < best.items + best.final_items;
      if (holds && better) best = {parts, items, more};
    }
  }
  return best;
}

// Bytes of work memory, which suffice for any shorter row and smaller batch too: the keys that the
// parts find.
inline size_t top_k_work(const TopKProblem& problem) {
  const int64_t largest = kTopKThreads * kTopKItems[2];  // of a row
  return top_k_plan(problem).parts == 1 ? 0 : static_cast<size_t>(problem.rows * largest) * 8;
}

// Returns one sentence about what is wrong with the problem, or an empty string.
inline std::string check(const TopKProblem& problem) {
  if (problem.count < 0 || problem.count > problem.size) {
    return "count: should be 0 to S = " + std::to_string(problem.size) + ", got " +
           std::to_string(problem.count);
  }
  // The kernels count numbers of a row, and parts of all rows, in 32 bits.
  constexpr int64_t kLimit = INT32_MAX / 8;
  if (problem.size > kLimit || problem.rows > kLimit ||
      problem.rows * problem.size / 256 > kLimit) {
    return "x: N, S and N*S/256 should each be at most 2^28 - 1, got N=" +
           std::to_string(problem.rows) + " S=" + std::to_string(problem.size);
  }
  return {};
}

}  // namespace msda
