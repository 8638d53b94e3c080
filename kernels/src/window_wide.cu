// The kernels of window attention for float and double values.
#include "msda/window_dispatch.cuh"

namespace msda {

template cudaError_t run_window<float>(WindowKernel, const WindowProblem&, const WindowArguments&,
                                       cudaStream_t);
template cudaError_t run_window<double>(WindowKernel, const WindowProblem&, const WindowArguments&,
                                        cudaStream_t);

}  // namespace msda
