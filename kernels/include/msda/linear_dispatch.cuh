// From a problem to a compiled kernel of linear layers. kernels/src compiles the plain kernel of
// all types in one file, and kernels/src/sm90 those of compute capability 9.0, in a file for each
// number of rows of a tile.
#pragma once

#include "msda/linear_choice.h"
#include "msda/linear_plain.cuh"

namespace msda {

#ifdef MSDA_WITH_SM90
template <typename T, int kRows>
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
      return tile_rows(kernel) == 64 ? run_linear_sm90<T, 64>(kernel, problem, arguments, stream)
                                     : run_linear_sm90<T, 128>(kernel, problem, arguments, stream);
    }
  }
#endif
  return launch_linear_plain<T>(problem, arguments, stream);
}

}  // namespace msda
