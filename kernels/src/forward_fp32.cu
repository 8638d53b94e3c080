// The forward kernels of float values.
#include "msda/forward_dispatch.cuh"

namespace msda {

template cudaError_t run_forward<float>(ForwardKernel, const Problem&, const ForwardArguments&,
                                        cudaStream_t);

}  // namespace msda
