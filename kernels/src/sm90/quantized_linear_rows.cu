// The kernel "rows" of linear layers with int8 inputs.
#include "msda/quantized_linear_rows.cuh"

namespace msda {

template cudaError_t run_quantized_linear_rows<int8_t>(const QuantizedLinearProblem&,
                                                       const QuantizedLinearArguments&,
                                                       cudaStream_t);
template cudaError_t run_quantized_linear_rows<__half>(const QuantizedLinearProblem&,
                                                       const QuantizedLinearArguments&,
                                                       cudaStream_t);
template cudaError_t run_quantized_linear_rows<__nv_bfloat16>(const QuantizedLinearProblem&,
                                                              const QuantizedLinearArguments&,
                                                              cudaStream_t);

}  // namespace msda
