// The launchers, which every wrapper calls. They launch on the caller's stream, allocate nothing
// and never synchronise. The problem has passed check(); for an empty problem they launch nothing.
// Pointers are device pointers.
#pragma once

#include <cuda_runtime_api.h>

#include <string>

#include "msda/backward_work.h"
#include "msda/feed_forward_params.h"
#include "msda/group_norm_params.h"
#include "msda/image_input_params.h"
#include "msda/linear_max_params.h"
#include "msda/linear_of_sum_params.h"
#include "msda/linear_params.h"
#include "msda/params.h"
#include "msda/quantized_feed_forward_params.h"
#include "msda/quantized_layer_norm_params.h"
#include "msda/quantized_linear_params.h"
#include "msda/top_k_params.h"
#include "msda/window_params.h"

namespace msda {

// attention (Locations::kGiven) and fused_attention (reference points, boxes).
cudaError_t forward(const Problem& problem, const ForwardArguments& arguments, cudaStream_t stream);

// The gradients of both. The problem is dense(), and arguments.work has
// backward_work(problem, arguments).bytes bytes (backward_work.h).
cudaError_t backward(const Problem& problem, const BackwardArguments& arguments,
                     cudaStream_t stream);

// Window attention.
cudaError_t window_attention(const WindowProblem& problem, const WindowArguments& arguments,
                             cudaStream_t stream);

// Group normalisation of one or several levels. arguments.work has group_norm_work(problem) bytes.
cudaError_t group_norm(const GroupNormProblem& problem, const GroupNormArguments& arguments,
                       cudaStream_t stream);

// Linear layers.
cudaError_t linear(const LinearProblem& problem, const LinearArguments& arguments,
                   cudaStream_t stream);

// Whether linear() is as fast as the libraries' products on the current device. The launcher runs
// the plain kernel, which is slow, where this function returns false. It returns true where
// MSDA_LINEAR forces a kernel. A null pointer counts as aligned.
bool has_fast_linear(const LinearProblem& problem, const LinearArguments& arguments);

// The same for linear layers with 8-bit inputs. MSDA_QUANTIZED_LINEAR forces a kernel.
cudaError_t quantized_linear(const QuantizedLinearProblem& problem,
                             const QuantizedLinearArguments& arguments, cudaStream_t stream);
bool has_fast_quantized_linear(const QuantizedLinearProblem& problem,
                               const QuantizedLinearArguments& arguments);

// Layer normalisation with a result in 8 bits.
cudaError_t quantized_layer_norm(const QuantizedLayerNormProblem& problem,
                                 const QuantizedLayerNormArguments& arguments, cudaStream_t stream);

// Feed-forward blocks.
cudaError_t feed_forward(const FeedForwardProblem& problem, const FeedForwardArguments& arguments,
                         cudaStream_t stream);

// Whether feed_forward() is faster than two linear() and a normalisation on the current device. It
// returns true where MSDA_FEED_FORWARD forces a kernel.
bool has_fast_feed_forward(const FeedForwardProblem& problem);

// The same for feed-forward blocks in int8. MSDA_QUANTIZED_FEED_FORWARD forces a kernel.
cudaError_t quantized_feed_forward(const QuantizedFeedForwardProblem& problem,
                                   const QuantizedFeedForwardArguments& arguments,
                                   cudaStream_t stream);
bool has_fast_quantized_feed_forward(const QuantizedFeedForwardProblem& problem);

// The largest outputs of linear layers. has_fast_linear_max() is as has_fast_linear(), for any
// number of rows; MSDA_LINEAR_MAX forces a kernel.
cudaError_t linear_max(const LinearMaxProblem& problem, const LinearMaxArguments& arguments,
                       cudaStream_t stream);
bool has_fast_linear_max(LinearMaxProblem problem);

// Linear layers of a sum. Whether a kernel is faster than a sum and a linear layer on the current
// device; MSDA_LINEAR_OF_SUM forces a kernel.
cudaError_t linear_of_sum(const LinearOfSumProblem& problem, const LinearOfSumArguments& arguments,
                          cudaStream_t stream);
bool has_fast_linear_of_sum(const LinearOfSumProblem& problem);

// The largest numbers of rows. arguments.work has top_k_work(problem) bytes.
cudaError_t top_k(const TopKProblem& problem, const TopKArguments& arguments, cudaStream_t stream);

// An image's way into a network's input.
cudaError_t image_input(const ImageInputProblem& problem, const ImageInputArguments& arguments,
                        cudaStream_t stream);

// MSDA_FORWARD, MSDA_BACKWARD, MSDA_WINDOW, MSDA_GROUP_NORM, MSDA_LINEAR, MSDA_QUANTIZED_LINEAR,
// MSDA_QUANTIZED_LAYER_NORM, MSDA_FEED_FORWARD, MSDA_QUANTIZED_FEED_FORWARD, MSDA_LINEAR_MAX,
// MSDA_LINEAR_OF_SUM and MSDA_TOP_K force a kernel by its name. Where one of them names no kernel,
// the launchers return cudaErrorInvalidValue, and this function returns a message that lists the
// names; otherwise it returns an empty string.
std::string check_environment();

}  // namespace msda
