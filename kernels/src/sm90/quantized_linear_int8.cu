// The kernels of linear layers with int8 inputs for compute capability 9.0.
#include "msda/quantized_linear_sm90.cuh"

namespace msda {

template cudaError_t run_quantized_linear_sm90<int8_t>(QuantizedLinearKernel,
                                                       const QuantizedLinearProblem&,
                                                       const QuantizedLinearArguments&,
                                                       cudaStream_t);

}  // namespace msda
