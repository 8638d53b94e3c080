// Which kernel of feed-forward blocks in int8 runs a problem: this file decides for every wrapper.
// Plain C++.
//
//   plain   quantized_feed_forward_plain.cuh  any size, type and alignment
//   hopper  quantized_feed_forward_sm90.cuh   C of 256; H a multiple of 64, up to 2048; compute
//                                             capability 9.0
//
// The names are the values of MSDA_QUANTIZED_FEED_FORWARD, which forces a kernel.
#pragma once

#include "msda/linear_choice.h"
#include "msda/quantized_feed_forward_params.h"

namespace msda {

// The emulator runs `hopper` too, which needs nothing of CUTLASS there.
#if defined(MSDA_WITH_SM90) || defined(MSDA_EMULATED)
#define MSDA_WITH_FEED_FORWARD_HOPPER
inline constexpr bool kHasFeedForwardHopper = true;
#else
inline constexpr bool kHasFeedForwardHopper = false;
#endif

// Of kernel `hopper`.
inline constexpr int kHopperChannels = 256;
inline constexpr int kHopperMostHidden = 2048;

// Fewer rows leave multiprocessors idle, and two linear layers and a normalisation are as fast.
inline constexpr int64_t kFeedForwardFewestRows = 8192;

enum class QuantizedFeedForwardKernel : int32_t { kPlain, kHopper };

inline constexpr QuantizedFeedForwardKernel kQuantizedFeedForwardKernels[] = {
    QuantizedFeedForwardKernel::kPlain, QuantizedFeedForwardKernel::kHopper};

inline const char* name(QuantizedFeedForwardKernel kernel) {
  return kernel == QuantizedFeedForwardKernel::kPlain ? "plain" : "hopper";
}

// Whether a kernel can run the problem on some GPU.
inline bool can_run(QuantizedFeedForwardKernel kernel, const QuantizedFeedForwardProblem& problem,
                    const QuantizedFeedForwardArguments& arguments) {
  if (kernel == QuantizedFeedForwardKernel::kPlain) return true;
  return kHasFeedForwardHopper && problem.channels == kHopperChannels && problem.hidden > 0 &&
         problem.hidden <= kHopperMostHidden && problem.hidden % 64 == 0 &&
         aligned(arguments.x, 16) && aligned(arguments.weight1, 16) &&
         aligned(arguments.weight2, 16) && aligned(arguments.output, 16) &&
         aligned(arguments.quantized, 16);
}

// The fastest kernel.
inline QuantizedFeedForwardKernel choose_quantized_feed_forward(
    const QuantizedFeedForwardProblem& problem, const QuantizedFeedForwardArguments& arguments) {
  return can_run(QuantizedFeedForwardKernel::kHopper, problem, arguments)
             ? QuantizedFeedForwardKernel::kHopper
             : QuantizedFeedForwardKernel::kPlain;
}

// Whether kernel `hopper` is faster than two linear layers and a normalisation.
inline bool is_fast(const QuantizedFeedForwardProblem& problem) {
  return can_run(QuantizedFeedForwardKernel::kHopper, problem, {}) &&
         problem.rows >= kFeedForwardFewestRows;
}

}  // namespace msda
