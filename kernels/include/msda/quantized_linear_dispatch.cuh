// From a problem to a compiled kernel of linear layers with 8-bit inputs. Q is int8_t or
// __nv_fp8_e4m3, T is __half or __nv_bfloat16.
#pragma once

#include <type_traits>

#include "msda/quantized_linear_choice.h"
#include "msda/quantized_linear_plain.cuh"

namespace msda {

// In kernels/src/sm90.
#ifdef MSDA_WITH_HOPPER
template <typename Out>
cudaError_t run_quantized_linear_rows(const QuantizedLinearProblem& problem,
                                      const QuantizedLinearArguments& arguments,
                                      cudaStream_t stream);
#endif
#ifdef MSDA_WITH_SM90
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
#ifdef MSDA_WITH_HOPPER
  if constexpr (std::is_same_v<Q, int8_t>) {
    if (kernel == QuantizedLinearKernel::kRows) {
      return problem.quantized_output ? run_quantized_linear_rows<Q>(problem, arguments, stream)
                                      : run_quantized_linear_rows<T>(problem, arguments, stream);
    }
  }
#endif
#ifdef MSDA_WITH_SM90
  if (kernel != QuantizedLinearKernel::kPlain) {
    return run_quantized_linear_sm90<Q>(kernel, problem, arguments, stream);
  }
#endif
  return launch_quantized_linear_plain<Q, T>(problem, arguments, stream);
}

}  // namespace msda
