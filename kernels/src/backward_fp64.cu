// The backward kernels of double values.
#include "msda/backward_dispatch.cuh"

namespace msda {

template cudaError_t run_backward<double>(BackwardKernel, const Problem&, const BackwardArguments&,
                                          cudaStream_t);

}  // namespace msda
