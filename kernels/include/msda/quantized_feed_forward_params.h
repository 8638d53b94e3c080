// The contract of feed-forward blocks in int8 (quantized_feed_forward_choice.h lists their
// kernels): sizes, types and pointers of one problem. Plain C++.
//
// Letters:
//   M  rows of x: the product of all its sizes but the last
//   C  channels: columns of x
//   H  hidden numbers of a row
#pragma once

#include "msda/feed_forward_params.h"

namespace msda {

struct QuantizedFeedForwardProblem {
  int64_t rows = 0;                    // M
  int64_t channels = 0;                // C
  int64_t hidden = 0;                  // H
  double eps = 1e-5;                   // added to the variance
  DataType type = DataType::kFloat16;  // x, norm_weight, norm_bias, output: kFloat16 or kBFloat16
  float x_scale = 1;                   // a step of the quantised x in x's numbers
  float hidden_scale = 1;              // a step of the quantised hidden numbers in theirs
  float next_scale = 0;                // a step of the output in int8; 0: there is none

  bool empty() const { return rows == 0; }
};

// Tensors are contiguous. Pointers need no more alignment than their elements.
struct QuantizedFeedForwardArguments {
  const void* x = nullptr;            // [M, C]
  const void* weight1 = nullptr;      // [H, C] int8
  const void* scale1 = nullptr;       // [H] float: x_scale times the scale of each row of weight1
  const void* bias1 = nullptr;        // [H] float
  const void* weight2 = nullptr;      // [C, H] int8
  const void* scale2 = nullptr;       // [C] float: hidden_scale times that of each row of weight2
  const void* bias2 = nullptr;        // [C] float
  const void* norm_weight = nullptr;  // [C]
  const void* norm_bias = nullptr;    // [C]
  void* output = nullptr;             // [M, C]
  void* quantized = nullptr;          // [M, C] int8: output / next_scale; or none
};

// Returns one sentence about what is wrong with the problem, or an empty string.
inline std::string check(const QuantizedFeedForwardProblem& problem) {
  std::string wrong = check_scale("x_scale", problem.x_scale);
  if (wrong.empty()) wrong = check_scale("hidden_scale", problem.hidden_scale);
  if (wrong.empty() && problem.next_scale != 0) {
    wrong = check_scale("next_scale", problem.next_scale);
  }
  if (!wrong.empty()) return wrong;
  if (problem.type != DataType::kFloat16 && problem.type != DataType::kBFloat16) {
    return std::string("x: should be float16 or bfloat16, got ") + name(problem.type);
  }
  return check_feed_forward(problem);
}

}  // namespace msda
