// The kernels of window attention for __half values.
#include "msda/window_dispatch.cuh"

namespace msda {

template cudaError_t run_window<__half>(WindowKernel, const WindowProblem&, const WindowArguments&,
                                        cudaStream_t);

}  // namespace msda
