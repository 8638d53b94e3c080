// From a problem to a compiled kernel of linear layers with 8-bit inputs. Q is int8_t or
// __nv_fp8_e4m3, T is __half or __nv_bfloat16.
#pragma once

#include "msda/quantized_linear_choice.h"
#include "msda/quantized_linear_plain.cuh"

namespace msda {

#ifdef MSDA_WITH_SM90
// In kernels/src/sm90.
template <typename Q>
cudaError_t run_quantized_linear_sm90(QuantizedLinearKernel kernel,
                                      const QuantizedLinearProblem& problem,
                                      const QuantizedLinearArguments& arguments,
                                      cudaStream_t stream);
#endif

// Runs a kernel that can_run() the problem.
template <typename Q, typename T>
cudaError_t run_quantized_linear(QuantizedLinearKernel kernel,
                                 const QuantizedLinearProblem& problem,
                                 const QuantizedLinearArguments& arguments, cudaStream_t stream) {
#ifdef MSDA_WITH_SM90
  if (kernel != QuantizedLinearKernel::kPlain) {
    return run_quantized_linear_sm90<Q>(kernel, problem, arguments, stream);
  }
#endif
  return launch_quantized_linear_plain<Q, T>(problem, arguments, stream);
}

}  // namespace msda
