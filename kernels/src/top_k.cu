// The kernels that search for the largest numbers.
#include "msda/top_k_choice.h"
#include "msda/top_k_parts.cuh"
#include "msda/top_k_plain.cuh"

namespace msda {

// Runs a kernel that can_run() the problem.
cudaError_t run_top_k(TopKKernel kernel, const TopKProblem& problem, const TopKArguments& arguments,
                      cudaStream_t stream) {
  return kernel == TopKKernel::kParts ? launch_top_k_parts(problem, arguments, stream)
                                      : launch_top_k_plain(problem, arguments, stream);
}

}  // namespace msda
