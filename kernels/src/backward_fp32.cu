// The backward kernels of float values.
#include "msda/backward_dispatch.cuh"

namespace msda {

template cudaError_t run_backward<float>(BackwardKernel, const Problem&, const BackwardArguments&,
                                         cudaStream_t);

}  // namespace msda
