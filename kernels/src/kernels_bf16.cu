// The kernels of __nv_bfloat16 values.
#include "msda/backward_dispatch.cuh"
#include "msda/forward_dispatch.cuh"

namespace msda {

template cudaError_t run_forward<__nv_bfloat16>(ForwardKernel, const Problem&,
                                                const ForwardArguments&, cudaStream_t);
template cudaError_t run_backward<__nv_bfloat16>(BackwardKernel, const Problem&,
                                                 const BackwardArguments&, cudaStream_t);

}  // namespace msda
