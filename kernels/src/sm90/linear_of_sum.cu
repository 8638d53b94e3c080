// The kernel of linear layers of a sum for compute capability 9.0.
#include "msda/linear_of_sum_sm90.cuh"

namespace msda {

template cudaError_t launch_linear_of_sum_hopper<__half>(const LinearOfSumProblem&,
                                                         const LinearOfSumArguments&, cudaStream_t);
template cudaError_t launch_linear_of_sum_hopper<__nv_bfloat16>(const LinearOfSumProblem&,
                                                                const LinearOfSumArguments&,
                                                                cudaStream_t);

}  // namespace msda
