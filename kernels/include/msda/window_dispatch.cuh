// From a problem to a compiled kernel of window attention. kernels/src compiles each type by
// itself.
#pragma once

#include "msda/window_choice.h"
#include "msda/window_plain.cuh"
#include "msda/window_tensor_core.cuh"

namespace msda {

// Runs a kernel that can_run() the problem. Returns cudaErrorNotSupported where this GPU cannot.
template <typename T>
cudaError_t run_window(WindowKernel kernel, const WindowProblem& problem,
                       const WindowArguments& arguments, cudaStream_t stream) {
  if constexpr (sizeof(T) == 2) {
    if (kernel == WindowKernel::kTensorCore) {
      return run_window_tensor_core<T>(problem, arguments, stream);
    }
  }
  return launch_window_plain<T>(problem, arguments, stream);
}

}  // namespace msda
