// From a problem to a compiled kernel of linear layers. kernels/src compiles the plain kernel of
// all types in one file, and kernels/src/sm90 those of compute capability 9.0.
#pragma once

#include "msda/linear_choice.h"
#include "msda/linear_plain.cuh"

namespace msda {

#ifdef MSDA_WITH_SM90
template <typename T>
cudaError_t run_linear_sm90(LinearKernel kernel, const LinearProblem& problem,
                            const LinearArguments& arguments, cudaStream_t stream);
#endif

// Runs a kernel that can_run() the problem.
template <typename T>
cudaError_t run_linear(LinearKernel kernel, const LinearProblem& problem,
                       const LinearArguments& arguments, cudaStream_t stream) {
#ifdef MSDA_WITH_SM90
  if constexpr (sizeof(T) == 2) {
    if (kernel != LinearKernel::kPlain) {
      return run_linear_sm90<T>(kernel, problem, arguments, stream);
    }
  }
#endif
  return launch_linear_plain<T>(problem, arguments, stream);
}

}  // namespace msda
