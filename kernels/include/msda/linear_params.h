// The contract of linear layers (linear_choice.h lists their kernels): sizes, type and pointers of
// one problem. Plain C++.
//
// Letters:
//   M  rows of x: the product of all its sizes but the last
//   K  columns of x
//   N  columns of the result
#pragma once

#include "msda/group_norm_params.h"  // for kMaxEps
#include "msda/params.h"

namespace msda {

enum class Activation : int32_t { kNone, kGelu, kRelu };  // kGelu: x * (1 + erf(x / sqrt(2))) / 2

struct LinearProblem {
  int64_t rows = 0;     // M
  int64_t inputs = 0;   // K
  int64_t outputs = 0;  // N
  Activation activation = Activation::kNone;
  bool residual = false;               // whether there is one
  bool masked = false;                 // whether there is a mask
  bool normed = false;                 // whether the rows of the result are normalised
  DataType type = DataType::kFloat32;  // all tensors
  double eps = 1e-5;                   // of the normalisation, added to the variance

  bool empty() const { return rows == 0 || outputs == 0; }
};

// Tensors are contiguous. Pointers need no more alignment than their elements.
struct LinearArguments {
  const void* x = nullptr;            // [M, K]
  const void* weight = nullptr;       // [N, K]
  const void* bias = nullptr;         // [N]. Null: zeros.
  const void* residual = nullptr;     // [M, N]
  const void* mask = nullptr;         // [M]. Each row of the result is multiplied by its number.
  const void* norm_weight = nullptr;  // [N]
  const void* norm_bias = nullptr;    // [N]
  void* output = nullptr;             // [M, N]
};

// Checks M, K and N of any problem of linear layers. Returns one sentence about what is wrong, or
// an empty string.
template <typename Problem>
std::string check_layer_sizes(const Problem& problem) {
  // The kernels count rows and columns in 32 bits.
  constexpr int64_t kLimit = INT32_MAX / 8;
  if (problem.rows > kLimit || problem.inputs > kLimit || problem.outputs > kLimit) {
    return "x: M, K and N should each be at most 2^28 - 1, got M=" + std::to_string(problem.rows) +
           " K=" + std::to_string(problem.inputs) + " N=" + std::to_string(problem.outputs);
  }
  return {};
}

// Returns one sentence about what is wrong with the problem, or an empty string.
inline std::string check(const LinearProblem& problem) {
  const std::string wrong = check_layer_sizes(problem);
  if (!wrong.empty()) return wrong;
  if (problem.normed && (problem.masked || problem.activation != Activation::kNone)) {
    return "norm_weight: should be absent with an activation or a mask";
  }
  if (problem.normed && !(problem.eps > 0 && problem.eps <= kMaxEps)) {
    return "eps: should be a finite number above 0, got " + std::to_string(problem.eps);
  }
  return {};
}

}  // namespace msda
