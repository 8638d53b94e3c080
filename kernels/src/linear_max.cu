// The kernels of the largest outputs of linear layers, for all types.
#include "msda/linear_max_choice.h"
#include "msda/linear_max_plain.cuh"
#include "msda/linear_max_tensor_core.cuh"

namespace msda {

// Runs a kernel that can_run() the problem. cudaErrorNotSupported: this GPU cannot.
template <typename T>
cudaError_t run_linear_max(LinearMaxKernel kernel, const LinearMaxProblem& problem,
                           const LinearMaxArguments& arguments, cudaStream_t stream) {
  if constexpr (sizeof(T) == 2) {
    if (kernel == LinearMaxKernel::kTensorCore) {
      return run_linear_max_tensor_core<T>(problem, arguments, stream);
    }
  }
  return launch_linear_max_plain<T>(problem, arguments, stream);
}

template cudaError_t run_linear_max<float>(LinearMaxKernel, const LinearMaxProblem&,
                                           const LinearMaxArguments&, cudaStream_t);
template cudaError_t run_linear_max<__half>(LinearMaxKernel, const LinearMaxProblem&,
                                            const LinearMaxArguments&, cudaStream_t);
template cudaError_t run_linear_max<__nv_bfloat16>(LinearMaxKernel, const LinearMaxProblem&,
                                                   const LinearMaxArguments&, cudaStream_t);
template cudaError_t run_linear_max<double>(LinearMaxKernel, const LinearMaxProblem&,
                                            const LinearMaxArguments&, cudaStream_t);

}  // namespace msda
