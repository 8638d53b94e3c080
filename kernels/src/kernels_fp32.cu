// The kernels of float values.
#include "msda/backward_dispatch.cuh"
#include "msda/forward_dispatch.cuh"

namespace msda {

template cudaError_t run_forward<float>(ForwardKernel, const Problem&, const ForwardArguments&,
                                        cudaStream_t);
template cudaError_t run_backward<float>(BackwardKernel, const Problem&, const BackwardArguments&,
                                         cudaStream_t);

}  // namespace msda
