// The forward kernels of __nv_bfloat16 values.
#include "msda/forward_dispatch.cuh"

namespace msda {

template cudaError_t run_forward<__nv_bfloat16>(ForwardKernel, const Problem&,
                                                const ForwardArguments&, cudaStream_t);

}  // namespace msda
