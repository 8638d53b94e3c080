// The forward kernels of double values.
#include "msda/forward_dispatch.cuh"

namespace msda {

template cudaError_t run_forward<double>(ForwardKernel, const Problem&, const ForwardArguments&,
                                         cudaStream_t);

}  // namespace msda
