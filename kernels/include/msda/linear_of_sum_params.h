// The contract of linear layers of a sum (linear_of_sum_choice.h lists their kernels): sizes, type
// and pointers of one problem. Plain C++.
//
// Letters:
//   M  rows of x: the product of all its sizes but the last
//   K  columns of x
//   N  columns of the result
#pragma once

#include "msda/linear_params.h"

namespace msda {

struct LinearOfSumProblem {
  int64_t rows = 0;                    // M
  int64_t inputs = 0;                  // K
  int64_t outputs = 0;                 // N
  DataType type = DataType::kFloat16;  // all tensors: kFloat32, kFloat16 or kBFloat16

  bool empty() const { return rows == 0 || outputs == 0; }
};

// Tensors are contiguous. Pointers need no more alignment than their elements.
struct LinearOfSumArguments {
  const void* x = nullptr;       // [M, K]
  const void* addend = nullptr;  // [M, K]
  const void* weight = nullptr;  // [N, K]
  const void* bias = nullptr;    // [N]
  void* output = nullptr;        // [M, N]
};

// Returns one sentence about what is wrong with the problem, or an empty string.
inline std::string check(const LinearOfSumProblem& problem) { return check_layer_sizes(problem); }

}  // namespace msda
