// The kernels of layer normalisation with a result in 8 bits, for all types.
#include "msda/quantized_layer_norm_vectors.cuh"

namespace msda {
namespace {

template <typename T, typename Q>
cudaError_t run(QuantizedLayerNormKernel kernel, const QuantizedLayerNormProblem& problem,
                const QuantizedLayerNormArguments& arguments, cudaStream_t stream) {
  if constexpr (sizeof(T) == 2) {
    if (kernel == QuantizedLayerNormKernel::kVectors) {
      return launch_quantized_layer_norm_vectors<T, Q>(problem, arguments, stream);
    }
  }
  return launch_quantized_layer_norm_plain<T, Q>(problem, arguments, stream);
}

template <typename Q>
cudaError_t run(QuantizedLayerNormKernel kernel, const QuantizedLayerNormProblem& problem,
                const QuantizedLayerNormArguments& arguments, cudaStream_t stream) {
  switch (problem.type) {
    case DataType::kFloat32:
      return run<float, Q>(kernel, problem, arguments, stream);
    case DataType::kFloat16:
      return run<__half, Q>(kernel, problem, arguments, stream);
    case DataType::kBFloat16:
      return run<__nv_bfloat16, Q>(kernel, problem, arguments, stream);
    default:
      return cudaErrorInvalidValue;
  }
}

}  // namespace

// Runs a kernel that can_run() the problem.
cudaError_t run_quantized_layer_norm(QuantizedLayerNormKernel kernel,
                                     const QuantizedLayerNormProblem& problem,
                                     const QuantizedLayerNormArguments& arguments,
                                     cudaStream_t stream) {
  return problem.output_type == EightBits::kInt8
             ? run<int8_t>(kernel, problem, arguments, stream)
             : run<__nv_fp8_e4m3>(kernel, problem, arguments, stream);
}

}  // namespace msda
