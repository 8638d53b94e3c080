// The kernels of group normalisation, for all types.
#include "msda/group_norm_dispatch.cuh"

namespace msda {

template cudaError_t run_group_norm<float>(GroupNormKernel, const GroupNormProblem&,
                                           const GroupNormArguments&, cudaStream_t);
template cudaError_t run_group_norm<__half>(GroupNormKernel, const GroupNormProblem&,
                                            const GroupNormArguments&, cudaStream_t);
template cudaError_t run_group_norm<__nv_bfloat16>(GroupNormKernel, const GroupNormProblem&,
                                                   const GroupNormArguments&, cudaStream_t);
template cudaError_t run_group_norm<double>(GroupNormKernel, const GroupNormProblem&,
                                            const GroupNormArguments&, cudaStream_t);

}  // namespace msda
