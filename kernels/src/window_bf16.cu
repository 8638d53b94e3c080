// The kernels of window attention for __nv_bfloat16 values.
#include "msda/window_dispatch.cuh"

namespace msda {

template cudaError_t run_window<__nv_bfloat16>(WindowKernel, const WindowProblem&,
                                               const WindowArguments&, cudaStream_t);

}  // namespace msda
