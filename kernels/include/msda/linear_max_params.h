// The contract of the largest outputs of linear layers (linear_max_choice.h lists its kernels):
// sizes, type and pointers of one problem. Plain C++.
//
// Letters:
//   M  rows of x: the product of all its sizes but the last
//   K  columns of x
//   N  outputs of the layer
#pragma once

#include "msda/linear_params.h"

namespace msda {

struct LinearMaxProblem {
  int64_t rows = 0;                    // M
  int64_t inputs = 0;                  // K
  int64_t outputs = 0;                 // N
  DataType type = DataType::kFloat32;  // x

  bool empty() const { return rows == 0; }
};

// Tensors are contiguous. Pointers need no more alignment than their elements. All tensors but x
// are float (double with a double x).
struct LinearMaxArguments {
  const void* x = nullptr;       // [M, K]
  const void* weight = nullptr;  // [N, K]
  const void* bias = nullptr;    // [N]
  void* output = nullptr;        // [M]
};

// Returns one sentence about what is wrong with the problem, or an empty string.
inline std::string check(const LinearMaxProblem& problem) {
  const std::string wrong = check_layer_sizes(problem);
  if (!wrong.empty()) return wrong;
  if (problem.outputs < 1) return "weight: N should be 1 or more, got 0";
  return {};
}

}  // namespace msda
