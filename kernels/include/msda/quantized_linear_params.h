// The contract of linear layers with 8-bit inputs (quantized_linear_choice.h lists their kernels):
// sizes, types and pointers of one problem. Plain C++. Letters as in linear_params.h.
#pragma once

#include "msda/linear_params.h"

namespace msda {

// Types of quantised numbers. kFloat8 is E4M3 with a NaN and without infinities, as in ONNX's
// FLOAT8E4M3FN.
enum class EightBits : int32_t { kInt8, kFloat8 };

struct QuantizedLinearProblem {
  int64_t rows = 0;     // M
  int64_t inputs = 0;   // K
  int64_t outputs = 0;  // N
  Activation activation = Activation::kNone;
  bool residual = false;                    // whether there is one
  bool masked = false;                      // whether there is a mask
  bool quantized_output = false;            // whether the output has the type of x, else `type`
  EightBits input_type = EightBits::kInt8;  // x and weight
  DataType type = DataType::kFloat16;       // residual and mask: kFloat16 or kBFloat16
  float output_scale = 1;                   // of a quantised output: a step in the output's numbers

  bool empty() const { return rows == 0 || outputs == 0; }
};

// Tensors are contiguous. Pointers need no more alignment than their elements.
struct QuantizedLinearArguments {
  const void* x = nullptr;         // [M, K]
  const void* weight = nullptr;    // [N, K]
  const void* scale = nullptr;     // [N] float: the scale of x times that of each row of weight
  const void* bias = nullptr;      // [N] float. Null: zeros.
  const void* residual = nullptr;  // [M, N]
  const void* mask = nullptr;      // [M]. Each row of the result is multiplied by its number.
  void* output = nullptr;          // [M, N]
};

inline const char* name(EightBits type) {
  return type == EightBits::kInt8 ? "int8" : "float8_e4m3";
}

// Returns one sentence about what is wrong with the problem, or an empty string.
inline std::string check(const QuantizedLinearProblem& problem) {
  // The kernels count rows and columns in 32 bits.
  constexpr int64_t kLimit = INT32_MAX / 8;
  // A sum of this many products (-128)^2 fits into 32 bits.
  constexpr int64_t kMostInputs = (int64_t{1} << 17) - 1;
  if (problem.rows > kLimit || problem.inputs > kMostInputs || problem.outputs > kLimit) {
    return "x: M and N should each be at most 2^28 - 1, and K at most 2^17 - 1, got M=" +
           std::to_string(problem.rows) + " K=" + std::to_string(problem.inputs) +
           " N=" + std::to_string(problem.outputs);
  }
  if (problem.type != DataType::kFloat16 && problem.type != DataType::kBFloat16) {
    return std::string("dtype: should be float16 or bfloat16, got ") + name(problem.type);
  }
  return problem.quantized_output ? check_scale("output_scale", problem.output_scale) : "";
}

}  // namespace msda
