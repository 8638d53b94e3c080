// Which kernel of group normalisation runs a problem: this file decides for every wrapper. Plain
// C++.
//
//   plain    group_norm_plain.cuh    any size, type and alignment
//   vectors  group_norm_vectors.cuh  groups of whole vectors of 16 bytes, up to 512 vectors a cell
//
// The names are the values of MSDA_GROUP_NORM, which forces a kernel.
#pragma once

#include "msda/forward_choice.h"
#include "msda/group_norm_params.h"

namespace msda {

enum class GroupNormKernel : int32_t { kPlain, kVectors };

inline constexpr GroupNormKernel kGroupNormKernels[] = {GroupNormKernel::kPlain,
                                                        GroupNormKernel::kVectors};

inline const char* name(GroupNormKernel kernel) {
  return kernel == GroupNormKernel::kPlain ? "plain" : "vectors";
}

inline bool can_run(GroupNormKernel kernel, const GroupNormProblem& problem,
                    const GroupNormArguments& arguments) {
  if (kernel == GroupNormKernel::kPlain) return true;
  for (const GroupNormLevel& level : arguments.levels) {  // those that do not exist have null
    if (!aligned(level.x, 16) || !aligned(level.weight, 16) || !aligned(level.bias, 16)) {
      return false;
    }
  }
  return group_norm_fits_vectors(problem) && aligned(arguments.output, 16) &&
         aligned(arguments.quantized, 16) && aligned(arguments.work, 16);
}

// The fastest kernel.
inline GroupNormKernel choose_group_norm(const GroupNormProblem& problem,
                                         const GroupNormArguments& arguments) {
  return can_run(GroupNormKernel::kVectors, problem, arguments) ? GroupNormKernel::kVectors
                                                                : GroupNormKernel::kPlain;
}

}  // namespace msda
