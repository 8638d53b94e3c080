// The kernels of linear layers of a sum for all types, but that of sm90.
#include "msda/linear_of_sum_choice.h"
#include "msda/linear_of_sum_plain.cuh"

namespace msda {

#ifdef MSDA_WITH_HOPPER
// In kernels/src/sm90.
template <typename T>
cudaError_t launch_linear_of_sum_hopper(const LinearOfSumProblem& problem,
                                        const LinearOfSumArguments& arguments, cudaStream_t stream);
#endif

// Runs a kernel that can_run() the problem.
template <typename T>
cudaError_t run_linear_of_sum(LinearOfSumKernel kernel, const LinearOfSumProblem& problem,
                              const LinearOfSumArguments& arguments, cudaStream_t stream) {
#ifdef MSDA_WITH_HOPPER
  if constexpr (sizeof(T) == 2) {
    if (kernel == LinearOfSumKernel::kHopper) {
      return launch_linear_of_sum_hopper<T>(problem, arguments, stream);
    }
  }
#endif
  return launch_linear_of_sum_plain<T>(problem, arguments, stream);
}

template cudaError_t run_linear_of_sum<float>(LinearOfSumKernel, const LinearOfSumProblem&,
                                              const LinearOfSumArguments&, cudaStream_t);
template cudaError_t run_linear_of_sum<__half>(LinearOfSumKernel, const LinearOfSumProblem&,
                                               const LinearOfSumArguments&, cudaStream_t);
template cudaError_t run_linear_of_sum<__nv_bfloat16>(LinearOfSumKernel, const LinearOfSumProblem&,
                                                      const LinearOfSumArguments&, cudaStream_t);

}  // namespace msda
