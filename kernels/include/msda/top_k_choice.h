// Which kernel searches for the largest numbers: this file decides for every wrapper. Plain C++.
//
//   plain  top_k_plain.cuh  any size; slow for long rows
//   parts  top_k_parts.cuh  up to 1024 numbers to find, 16,384 candidates of all parts of a row
//
// The names are the values of MSDA_TOP_K, which forces a kernel.
#pragma once

#include "msda/top_k_params.h"

namespace msda {

enum class TopKKernel : int32_t { kPlain, kParts };

inline constexpr TopKKernel kTopKKernels[] = {TopKKernel::kPlain, TopKKernel::kParts};

inline const char* name(TopKKernel kernel) {
  return kernel == TopKKernel::kPlain ? "plain" : "parts";
}

inline bool can_run(TopKKernel kernel, const TopKProblem& problem) {
  return kernel == TopKKernel::kPlain || top_k_plan(problem).parts > 0;
}

// The fastest kernel.
inline TopKKernel choose_top_k(const TopKProblem& problem) {
  return can_run(TopKKernel::kParts, problem) ? TopKKernel::kParts : TopKKernel::kPlain;
}

}  // namespace msda
