// The backward kernels of __nv_bfloat16 values.
#include "msda/backward_dispatch.cuh"

namespace msda {

template cudaError_t run_backward<__nv_bfloat16>(BackwardKernel, const Problem&,
                                                 const BackwardArguments&, cudaStream_t);

}  // namespace msda
