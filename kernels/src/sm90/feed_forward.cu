// The kernels of feed-forward blocks for compute capability 9.0.
#include "msda/feed_forward_split.cuh"

namespace msda {

template cudaError_t launch_feed_forward_hopper<__half>(const FeedForwardProblem&,
                                                        const FeedForwardArguments&, cudaStream_t);
template cudaError_t launch_feed_forward_hopper<__nv_bfloat16>(const FeedForwardProblem&,
                                                               const FeedForwardArguments&,
                                                               cudaStream_t);
template cudaError_t launch_feed_forward_split<__half>(const FeedForwardProblem&,
                                                       const FeedForwardArguments&, cudaStream_t);
template cudaError_t launch_feed_forward_split<__nv_bfloat16>(const FeedForwardProblem&,
                                                              const FeedForwardArguments&,
                                                              cudaStream_t);

}  // namespace msda
