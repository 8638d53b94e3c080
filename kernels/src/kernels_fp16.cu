// The kernels of __half values.
#include "msda/backward_dispatch.cuh"
#include "msda/forward_dispatch.cuh"

namespace msda {

template cudaError_t run_forward<__half>(ForwardKernel, const Problem&, const ForwardArguments&,
                                         cudaStream_t);
template cudaError_t run_backward<__half>(BackwardKernel, const Problem&, const BackwardArguments&,
                                          cudaStream_t);

}  // namespace msda
