// The kernels of linear layers for compute capability 9.0 with tiles of 64 rows. Both types share
// what the compiler does for a tile, which takes most of the time.
#include "msda/linear_sm90.cuh"

namespace msda {

template cudaError_t run_linear_sm90<__half, 64>(LinearKernel, const LinearProblem&,
                                                 const LinearArguments&, cudaStream_t);
template cudaError_t run_linear_sm90<__nv_bfloat16, 64>(LinearKernel, const LinearProblem&,
                                                        const LinearArguments&, cudaStream_t);

}  // namespace msda
