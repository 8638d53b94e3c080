// The kernels of linear layers for all types, but those of sm90.
#include "msda/linear_dispatch.cuh"

namespace msda {

template cudaError_t run_linear<float>(LinearKernel, const LinearProblem&, const LinearArguments&,
                                       cudaStream_t);
template cudaError_t run_linear<__half>(LinearKernel, const LinearProblem&, const LinearArguments&,
                                        cudaStream_t);
template cudaError_t run_linear<__nv_bfloat16>(LinearKernel, const LinearProblem&,
                                               const LinearArguments&, cudaStream_t);
template cudaError_t run_linear<double>(LinearKernel, const LinearProblem&, const LinearArguments&,
                                        cudaStream_t);

}  // namespace msda
