// The launchers: what every wrapper calls. They use the caller's stream, allocate nothing and never
// synchronise. The problem has passed check(); an empty one is a success that launches nothing.
// Pointers are device pointers.
#pragma once

#include <cuda_runtime_api.h>

#include <string>

#include "msda/backward_work.h"
#include "msda/params.h"

namespace msda {

// attention (Locations::kGiven) and fused_attention (the other two).
cudaError_t forward(const Problem& problem, const ForwardArguments& arguments, cudaStream_t stream);

// Gradients of attention (Locations::kGiven) and fused_attention (the other two). arguments.work
// has the bytes that backward_work(problem, arguments) of backward_work.h says. The problem is
// dense().
cudaError_t backward(const Problem& problem, const BackwardArguments& arguments,
                     cudaStream_t stream);

// MSDA_FORWARD and MSDA_BACKWARD force a kernel by its name. Where one of them names no kernel,
// both launchers return cudaErrorInvalidValue, and this returns a message that lists the names;
// else an empty text.
std::string check_environment();

}  // namespace msda
