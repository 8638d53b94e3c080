// The forward kernels of __half values.
#include "msda/forward_dispatch.cuh"

namespace msda {

template cudaError_t run_forward<__half>(ForwardKernel, const Problem&, const ForwardArguments&,
                                         cudaStream_t);

}  // namespace msda
