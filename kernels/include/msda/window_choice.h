// Which kernel of window attention runs a problem: this file decides for every wrapper. Plain C++.
//
//   plain        window_plain.cuh        any size, type and alignment
//   rows         window_rows.cuh         float, half and bfloat16; 16, 32 or 64 channels a head
//   tensor_core  window_tensor_core.cuh  half and bfloat16; windows of 7, 8, 12 or 16 cells a side,
//                                        16, 32 or 64 channels a head; compute capability 8.0
//
// The names are the values of MSDA_WINDOW, which forces a kernel.
#pragma once

#include "msda/forward_choice.h"
#include "msda/window_params.h"

namespace msda {

enum class WindowKernel : int32_t { kPlain, kRows, kTensorCore };

inline constexpr WindowKernel kWindowKernels[] = {WindowKernel::kPlain, WindowKernel::kRows,
                                                  WindowKernel::kTensorCore};

inline const char* name(WindowKernel kernel) {
  switch (kernel) {
    case WindowKernel::kPlain:
      return "plain";
    case WindowKernel::kRows:
      return "rows";
    case WindowKernel::kTensorCore:
      return "tensor_core";
  }
  return "";
}

// Whether a kernel can run the problem on some GPU.
inline bool can_run(WindowKernel kernel, const WindowProblem& problem,
                    const WindowArguments& arguments) {
  if (kernel == WindowKernel::kPlain) return true;
  const int64_t window = problem.window_size, channels = problem.head_dim;
  const bool vectors = (channels == 16 || channels == 32 || channels == 64) &&
                       aligned(arguments.qkv, 16) && aligned(arguments.padding, 16) &&
                       aligned(arguments.output, 16);
  if (kernel == WindowKernel::kRows) {
    // Blocks are counted in 32 bits.
    const int64_t blocks = problem.num_windows() * problem.num_heads * (window * window / 128 + 1);
    return vectors && size_of(problem.type) <= 4 && blocks <= INT32_MAX;
  }
  return vectors && size_of(problem.type) == 2 &&
         (window == 7 || window == 8 || window == 12 || window == 16) &&
         problem.batch_size * problem.height * problem.width <= INT32_MAX &&
         problem.num_windows() * problem.num_heads * (window * window / 16 + 1) < 1 << 30 &&
         aligned(arguments.bias, window == 7 ? 2 : 16);
}

// The fastest kernel.
inline WindowKernel choose_window(const WindowProblem& problem, const WindowArguments& arguments) {
  for (const WindowKernel kernel : {WindowKernel::kTensorCore, WindowKernel::kRows}) {
    if (can_run(kernel, problem, arguments)) return kernel;
  }
  return WindowKernel::kPlain;
}

}  // namespace msda
