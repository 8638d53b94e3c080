// Which kernel of feed-forward blocks runs a problem, and which one of those in int8: this file and
// quantized_feed_forward_choice.h decide for every wrapper. Plain C++.
//
//   plain   feed_forward_plain.cuh  any size, type and alignment
//   hopper  feed_forward_sm90.cuh   half and bfloat16; C of 256; H a multiple of 64, up to 2048;
//                                   compute capability 9.0
//   split   feed_forward_split.cuh  the same, up to 2048 rows; not in int8
//
// The names are the values of MSDA_FEED_FORWARD, which forces a kernel.
#pragma once

#include "msda/feed_forward_params.h"
#include "msda/linear_choice.h"

namespace msda {

enum class FeedForwardKernel : int32_t { kPlain, kHopper, kSplit };

inline constexpr FeedForwardKernel kFeedForwardKernels[] = {
    FeedForwardKernel::kPlain, FeedForwardKernel::kHopper, FeedForwardKernel::kSplit};

inline const char* name(FeedForwardKernel kernel) {
  switch (kernel) {
    case FeedForwardKernel::kPlain:
      return "plain";
    case FeedForwardKernel::kHopper:
      return "hopper";
    case FeedForwardKernel::kSplit:
      return "split";
  }
  return "";
}

// Whether kernel `hopper` has the sizes and the type of a problem, which may be in int8, and the
// alignment of its large tensors.
template <typename Problem, typename Arguments>
bool fits_feed_forward_hopper(const Problem& problem, const Arguments& arguments) {
  return kHasHopper && problem.channels == kHopperChannels && problem.hidden > 0 &&
         problem.hidden <= kHopperMostHidden && problem.hidden % 64 == 0 &&
         size_of(problem.type) == 2 && aligned(arguments.x, 16) && aligned(arguments.weight1, 16) &&
         aligned(arguments.weight2, 16) && aligned(arguments.output, 16);
}

// Whether a kernel can run the problem on some GPU.
inline bool can_run(FeedForwardKernel kernel, const FeedForwardProblem& problem,
                    const FeedForwardArguments& arguments) {
  if (kernel == FeedForwardKernel::kPlain) return true;
  const bool fits = kernel == FeedForwardKernel::kHopper ||
                    (problem.rows <= kSplitMostRows && arguments.work != nullptr);
  return fits && fits_feed_forward_hopper(problem, arguments);
}

// The fastest kernel.
inline FeedForwardKernel choose_feed_forward(const FeedForwardProblem& problem,
                                             const FeedForwardArguments& arguments) {
  for (FeedForwardKernel kernel : {FeedForwardKernel::kSplit, FeedForwardKernel::kHopper}) {
    if (can_run(kernel, problem, arguments)) return kernel;
  }
  return FeedForwardKernel::kPlain;
}

// Whether a kernel is faster than two linear layers and a normalisation. With more rows than
// `split` takes, `hopper` needs many: fewer leave multiprocessors idle.
inline bool is_fast(const FeedForwardProblem& problem) {
  const bool few = problem.rows <= kSplitMostRows, many = problem.rows >= 12288;
  return (few || many) && can_run(FeedForwardKernel::kHopper, problem, {});
}

}  // namespace msda
