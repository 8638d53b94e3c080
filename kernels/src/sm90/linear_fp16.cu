// The kernels of linear layers for compute capability 9.0 and __half values.
#include "msda/linear_sm90.cuh"

namespace msda {

template cudaError_t run_linear_sm90<__half>(LinearKernel, const LinearProblem&,
                                             const LinearArguments&, cudaStream_t);

}  // namespace msda
