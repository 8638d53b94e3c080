// The kernels of linear layers with 8-bit inputs for all types, but those of sm90.
#include "msda/quantized_linear_dispatch.cuh"

namespace msda {

template cudaError_t run_quantized_linear<int8_t, __half>(QuantizedLinearKernel,
                                                          const QuantizedLinearProblem&,
                                                          const QuantizedLinearArguments&,
                                                          cudaStream_t);
template cudaError_t run_quantized_linear<int8_t, __nv_bfloat16>(QuantizedLinearKernel,
                                                                 const QuantizedLinearProblem&,
                                                                 const QuantizedLinearArguments&,
                                                                 cudaStream_t);
template cudaError_t run_quantized_linear<__nv_fp8_e4m3, __half>(QuantizedLinearKernel,
                                                                 const QuantizedLinearProblem&,
                                                                 const QuantizedLinearArguments&,
                                                                 cudaStream_t);
template cudaError_t run_quantized_linear<__nv_fp8_e4m3, __nv_bfloat16>(
    QuantizedLinearKernel, const QuantizedLinearProblem&, const QuantizedLinearArguments&,
    cudaStream_t);

}  // namespace msda
