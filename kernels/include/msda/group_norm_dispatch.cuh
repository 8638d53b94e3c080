// From a problem to a compiled kernel of group normalisation. kernels/src compiles all types in one
// file.
#pragma once

#include "msda/group_norm_choice.h"
#include "msda/group_norm_plain.cuh"
#include "msda/group_norm_vectors.cuh"

namespace msda {

// Runs a kernel that can_run() the problem.
template <typename T>
cudaError_t run_group_norm(GroupNormKernel kernel, const GroupNormProblem& problem,
                           const GroupNormArguments& arguments, cudaStream_t stream) {
  return kernel == GroupNormKernel::kVectors
             ? launch_group_norm_vectors<T>(problem, arguments, stream)
             : launch_group_norm_plain<T>(problem, arguments, stream);
}

}  // namespace msda
