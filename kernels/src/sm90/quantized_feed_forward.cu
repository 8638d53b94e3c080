// The kernels of feed-forward blocks in int8 for compute capability 9.0.
#include "msda/quantized_feed_forward_sm90.cuh"

namespace msda {

template cudaError_t launch_quantized_feed_forward_hopper<__half>(
    const QuantizedFeedForwardProblem&, const QuantizedFeedForwardArguments&, cudaStream_t);
template cudaError_t launch_quantized_feed_forward_hopper<__nv_bfloat16>(
    const QuantizedFeedForwardProblem&, const QuantizedFeedForwardArguments&, cudaStream_t);

}  // namespace msda
