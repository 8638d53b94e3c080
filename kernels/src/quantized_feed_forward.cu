// The kernels of feed-forward blocks in int8 for all types, but that of sm90.
#include "msda/quantized_feed_forward_choice.h"
#include "msda/quantized_feed_forward_plain.cuh"

namespace msda {

#ifdef MSDA_WITH_HOPPER
// In kernels/src/sm90.
template <typename T>
cudaError_t launch_quantized_feed_forward_hopper(const QuantizedFeedForwardProblem& problem,
                                                 const QuantizedFeedForwardArguments& arguments,
                                                 cudaStream_t stream);
#endif

namespace {

template <typename T>
cudaError_t run(FeedForwardKernel kernel, const QuantizedFeedForwardProblem& problem,
                const QuantizedFeedForwardArguments& arguments, cudaStream_t stream) {
#ifdef MSDA_WITH_HOPPER
  if (kernel == FeedForwardKernel::kHopper) {
    return launch_quantized_feed_forward_hopper<T>(problem, arguments, stream);
  }
#endif
  return launch_quantized_feed_forward_plain<T>(problem, arguments, stream);
}

}  // namespace

// Runs a kernel that can_run() the problem.
cudaError_t run_quantized_feed_forward(FeedForwardKernel kernel,
                                       const QuantizedFeedForwardProblem& problem,
                                       const QuantizedFeedForwardArguments& arguments,
                                       cudaStream_t stream) {
  return problem.type == DataType::kFloat16
             ? run<__half>(kernel, problem, arguments, stream)
             : run<__nv_bfloat16>(kernel, problem, arguments, stream);
}

}  // namespace msda
