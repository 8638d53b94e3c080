// Which kernel of feed-forward blocks in int8 runs a problem: this file decides for every wrapper.
// Plain C++.
//
//   plain   quantized_feed_forward_plain.cuh  any size, type and alignment
//   hopper  quantized_feed_forward_sm90.cuh   C of 256; H a multiple of 64, up to 2048; compute
//                                             capability 9.0
//
// The names are the values of MSDA_QUANTIZED_FEED_FORWARD, which forces a kernel.
#pragma once

#include "msda/feed_forward_choice.h"
#include "msda/quantized_feed_forward_params.h"

namespace msda {

inline constexpr FeedForwardKernel kQuantizedFeedForwardKernels[] = {FeedForwardKernel::kPlain,
                                                                     FeedForwardKernel::kHopper};

// Whether a kernel can run the problem on some GPU.
inline bool can_run(FeedForwardKernel kernel, const QuantizedFeedForwardProblem& problem,
                    const QuantizedFeedForwardArguments& arguments) {
  return kernel == FeedForwardKernel::kPlain ||
         (fits_feed_forward_hopper(problem, arguments) && aligned(arguments.quantized, 16));
}

// The fastest kernel.
inline FeedForwardKernel choose_feed_forward(const QuantizedFeedForwardProblem& problem,
                                             const QuantizedFeedForwardArguments& arguments) {
  return can_run(FeedForwardKernel::kHopper, problem, arguments) ? FeedForwardKernel::kHopper
                                                                 : FeedForwardKernel::kPlain;
}

// Whether kernel `hopper` is faster than two linear layers and a normalisation. Fewer rows leave
// multiprocessors idle.
inline bool is_fast(const QuantizedFeedForwardProblem& problem) {
  return can_run(FeedForwardKernel::kHopper, problem, {}) && problem.rows >= 8192;
}

}  // namespace msda
