// From a problem to compiled backward kernels. kernels/src compiles each value type by itself.
#pragma once

#include "msda/backward_choice.h"
#include "msda/backward_general.cuh"
#include "msda/backward_group.cuh"
#include "msda/backward_reference_points.cuh"
#include "msda/fixed_point.cuh"

namespace msda {

// Makes all gradients but that of the reference points, by a kernel that can_run() the problem.
template <typename T>
cudaError_t run_backward_kernel(BackwardKernel kernel, const Problem& problem,
                                const BackwardArguments& arguments, const BackwardWork& work,
                                cudaStream_t stream) {
  if (kernel == BackwardKernel::kGeneral) {
    return launch_backward<T>(problem, arguments, work, stream);
  }
  if constexpr (sizeof(T) <= 4) {
    return with_constant<16, 32, 64>(problem.head_dim, [&](auto head_dim) {
      return with_constant<0, 1>(problem.locations != Locations::kGiven, [&](auto fused) {
        using Config = BackwardConfig<T, decltype(head_dim)::value, decltype(fused)::value != 0>;
        return launch_backward_group<Config>(problem, arguments, work,
                                             kernel == BackwardKernel::kTile, stream);
      });
    });
  }
  return cudaErrorInvalidValue;
}

// Makes all gradients that the caller wants, by a kernel that can_run() the problem.
template <typename T>
cudaError_t run_backward(BackwardKernel kernel, const Problem& problem,
                         const BackwardArguments& arguments, cudaStream_t stream) {
  const BackwardWork work = backward_work(problem, arguments);
  cudaError_t status = cudaSuccess;
  if (arguments.deterministic) status = launch_exponents<T>(problem, arguments, work, stream);
  if (status == cudaSuccess) {
    status = run_backward_kernel<T>(kernel, problem, arguments, work, stream);
  }
  if (status == cudaSuccess && arguments.deterministic) {
    status = launch_finish<T>(problem, arguments, work, stream);
  }
  if (status == cudaSuccess && arguments.grad_reference_points != nullptr) {
    status = launch_reference<T>(problem, arguments, work, stream);
  }
  return status;
}

}  // namespace msda
