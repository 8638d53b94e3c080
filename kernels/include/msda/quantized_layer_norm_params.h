// The contract of layer normalisation with a result in 8 bits (quantized_layer_norm_choice.h lists
// its kernels): sizes, types and pointers of one problem. Plain C++.
//
// Letters:
//   M  rows of x: the product of all its sizes but the last
//   C  channels: columns of x
#pragma once

#include "msda/group_norm_params.h"
#include "msda/quantized_linear_params.h"

namespace msda {

struct QuantizedLayerNormProblem {
  int64_t rows = 0;                          // M
  int64_t channels = 0;                      // C
  double eps = 1e-5;                         // added to the variance
  DataType type = DataType::kFloat16;        // all inputs: any but kFloat64
  EightBits output_type = EightBits::kInt8;  // of the result
  float scale = 1;                           // a step in the result's numbers

  bool empty() const { return rows == 0 || channels == 0; }
};

// Tensors are contiguous. Pointers need no more alignment than their elements.
struct QuantizedLayerNormArguments {
  const void* x = nullptr;       // [M, C]
  const void* weight = nullptr;  // [C]
  const void* bias = nullptr;    // [C]
  void* output = nullptr;        // [M, C]
};

// Returns one sentence about what is wrong with the problem, or an empty string.
inline std::string check(const QuantizedLayerNormProblem& problem) {
  if (!(problem.eps > 0 && problem.eps <= kMaxEps)) {
    return "eps: should be a finite number above 0, got " + std::to_string(problem.eps);
  }
  const std::string wrong = check_scale("scale", problem.scale);
  if (!wrong.empty()) return wrong;
  if (problem.type == DataType::kFloat64) {
    return "x: should be float32, float16 or bfloat16, got float64";
  }
  // The kernels count rows and columns in 32 bits.
  constexpr int64_t kLimit = INT32_MAX / 8;
  if (problem.rows > kLimit || problem.channels > kLimit) {
    return "x: M and C should each be at most 2^28 - 1, got M=" + std::to_string(problem.rows) +
           " C=" + std::to_string(problem.channels);
  }
  return {};
}

}  // namespace msda
