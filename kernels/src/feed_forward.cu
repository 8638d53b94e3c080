// The kernels of feed-forward blocks for all types, but that of sm90.
#include "msda/feed_forward_choice.h"
#include "msda/feed_forward_plain.cuh"

namespace msda {

#ifdef MSDA_WITH_HOPPER
// In kernels/src/sm90.
template <typename T>
cudaError_t launch_feed_forward_hopper(const FeedForwardProblem& problem,
                                       const FeedForwardArguments& arguments, cudaStream_t stream);
template <typename T>
cudaError_t launch_feed_forward_split(const FeedForwardProblem& problem,
                                      const FeedForwardArguments& arguments, cudaStream_t stream);
#endif

// Runs a kernel that can_run() the problem.
template <typename T>
cudaError_t run_feed_forward(FeedForwardKernel kernel, const FeedForwardProblem& problem,
                             const FeedForwardArguments& arguments, cudaStream_t stream) {
#ifdef MSDA_WITH_HOPPER
  if constexpr (sizeof(T) == 2) {
    if (kernel == FeedForwardKernel::kHopper) {
      return launch_feed_forward_hopper<T>(problem, arguments, stream);
    }
    if (kernel == FeedForwardKernel::kSplit) {
      return launch_feed_forward_split<T>(problem, arguments, stream);
    }
  }
#endif
  return launch_feed_forward_plain<T>(problem, arguments, stream);
}

template cudaError_t run_feed_forward<float>(FeedForwardKernel, const FeedForwardProblem&,
                                             const FeedForwardArguments&, cudaStream_t);
template cudaError_t run_feed_forward<__half>(FeedForwardKernel, const FeedForwardProblem&,
                                              const FeedForwardArguments&, cudaStream_t);
template cudaError_t run_feed_forward<__nv_bfloat16>(FeedForwardKernel, const FeedForwardProblem&,
                                                     const FeedForwardArguments&, cudaStream_t);

}  // namespace msda
