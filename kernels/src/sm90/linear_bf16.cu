// The kernels of linear layers for compute capability 9.0 and __nv_bfloat16 values.
#include "msda/linear_sm90.cuh"

namespace msda {

template cudaError_t run_linear_sm90<__nv_bfloat16>(LinearKernel, const LinearProblem&,
                                                    const LinearArguments&, cudaStream_t);

}  // namespace msda
