// The kernels of linear layers with E4M3 inputs for compute capability 9.0.
#include <cuda_fp8.h>

#include "msda/quantized_linear_sm90.cuh"

namespace msda {

template cudaError_t run_quantized_linear_sm90<__nv_fp8_e4m3>(QuantizedLinearKernel,
                                                              const QuantizedLinearProblem&,
                                                              const QuantizedLinearArguments&,
                                                              cudaStream_t);

}  // namespace msda
