// Which kernel computes the largest outputs of a linear layer: this file decides for every wrapper.
// Plain C++.
//
//   plain        linear_max_plain.cuh        any size, type and alignment
//   tensor_core  linear_max_tensor_core.cuh  half and bfloat16; K = 64, 192 or 256; N up to 80
//
// The names are the values of MSDA_LINEAR_MAX, which forces a kernel.
#pragma once

#include "msda/forward_choice.h"
#include "msda/linear_max_params.h"

namespace msda {

inline constexpr int kLinearMaxOutputs = 80;  // of kernel `tensor_core`

enum class LinearMaxKernel : int32_t { kPlain, kTensorCore };

inline constexpr LinearMaxKernel kLinearMaxKernels[] = {LinearMaxKernel::kPlain,
                                                        LinearMaxKernel::kTensorCore};

inline const char* name(LinearMaxKernel kernel) {
  return kernel == LinearMaxKernel::kPlain ? "plain" : "tensor_core";
}

inline bool can_run(LinearMaxKernel kernel, const LinearMaxProblem& problem,
                    const LinearMaxArguments& arguments) {
  const bool narrow = problem.type == DataType::kFloat16 || problem.type == DataType::kBFloat16;
  const bool compiled = problem.inputs == 64 || problem.inputs == 192 || problem.inputs == 256;
  return kernel == LinearMaxKernel::kPlain ||
         (narrow && compiled && problem.outputs <= kLinearMaxOutputs && aligned(arguments.x, 16));
}

// The fastest kernel.
inline LinearMaxKernel choose_linear_max(const LinearMaxProblem& problem,
                                         const LinearMaxArguments& arguments) {
  return can_run(LinearMaxKernel::kTensorCore, problem, arguments) ? LinearMaxKernel::kTensorCore
                                                                   : LinearMaxKernel::kPlain;
}

}  // namespace msda
