// The kernels of double values.
#include "msda/backward_dispatch.cuh"
#include "msda/forward_dispatch.cuh"

namespace msda {

template cudaError_t run_forward<double>(ForwardKernel, const Problem&, const ForwardArguments&,
                                         cudaStream_t);
template cudaError_t run_backward<double>(BackwardKernel, const Problem&, const BackwardArguments&,
                                          cudaStream_t);

}  // namespace msda
