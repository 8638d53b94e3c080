// Which kernel of linear layers of a sum runs a problem: this file decides for every wrapper. Plain
// C++.
//
//   plain   linear_of_sum_plain.cuh  any size, type and alignment
//   hopper  linear_of_sum_sm90.cuh   half and bfloat16; K a multiple of 8 up to 256; N a multiple
//   of
//                                    32 up to 512; compute capability 9.0
//
// The names are the values of MSDA_LINEAR_OF_SUM, which forces a kernel.
#pragma once

#include "msda/linear_choice.h"
#include "msda/linear_of_sum_params.h"

namespace msda {

// Of kernel `hopper`.
inline constexpr int kHopperMostInputs = 256;
inline constexpr int kHopperOutputs = 32;  // N is a multiple
inline constexpr int kHopperMostOutputs = 512;

enum class LinearOfSumKernel : int32_t { kPlain, kHopper };

inline constexpr LinearOfSumKernel kLinearOfSumKernels[] = {LinearOfSumKernel::kPlain,
                                                            LinearOfSumKernel::kHopper};

inline const char* name(LinearOfSumKernel kernel) {
  return kernel == LinearOfSumKernel::kPlain ? "plain" : "hopper";
}

// Whether a kernel can run the problem on some GPU.
inline bool can_run(LinearOfSumKernel kernel, const LinearOfSumProblem& problem,
                    const LinearOfSumArguments& arguments) {
  if (kernel == LinearOfSumKernel::kPlain) return true;
  const bool sizes = problem.inputs > 0 && problem.inputs <= kHopperMostInputs &&
                     problem.inputs % 8 == 0 && problem.outputs % kHopperOutputs == 0 &&
                     problem.outputs <= kHopperMostOutputs;
  return kHasHopper && sizes && size_of(problem.type) == 2 && aligned(arguments.x, 16) &&
         aligned(arguments.addend, 16) && aligned(arguments.weight, 16) &&
         aligned(arguments.output, 16);
}

// The fastest kernel.
inline LinearOfSumKernel choose_linear_of_sum(const LinearOfSumProblem& problem,
                                              const LinearOfSumArguments& arguments) {
  return can_run(LinearOfSumKernel::kHopper, problem, arguments) ? LinearOfSumKernel::kHopper
                                                                 : LinearOfSumKernel::kPlain;
}

// Whether kernel `hopper` is faster than a sum and a linear layer. Fewer rows leave multiprocessors
// idle.
inline bool is_fast(const LinearOfSumProblem& problem) {
  return can_run(LinearOfSumKernel::kHopper, problem, {}) && problem.rows >= 8192;
}

}  // namespace msda
