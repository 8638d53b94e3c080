// From a problem to a compiled kernel. Each value type is compiled in a file of its own
// (kernels/src).
#pragma once

#include "msda/choose.h"
#include "msda/forward.cuh"
#include "msda/forward_group.cuh"
#include "msda/forward_spread.cuh"

namespace msda {

// Runs a kernel that can_run() the problem.
template <typename T>
cudaError_t run_forward(ForwardKernel kernel, const Problem& problem,
                        const ForwardArguments& arguments, cudaStream_t stream);

// Lanes of a group: each takes two chunks of 16 bytes of a head.
template <typename T, int kHeadDim>
inline constexpr int kGroupLanes = kHeadDim * static_cast<int>(sizeof(T)) / 32;

inline constexpr int kGroupThreads = 256;
inline constexpr int kGroupBlocks = 2;

template <typename T, bool kFused, bool kWide, int kHeadDim>
cudaError_t run_group(const Problem& problem, const ForwardArguments& arguments,
                      cudaStream_t stream) {
  constexpr int kLanes = kGroupLanes<T, kHeadDim>;
  if constexpr (kHeadDim == 32) {
    using Input = std::conditional_t<kWide, float, T>;
    constexpr int kPoints = 4;
    constexpr size_t kOwnBytes = kPoints / kLanes * sizeof(Input);
    if (problem.num_heads == 8) {
      // A lane reads its points of a level at once.
      const bool four =
          equal_points(problem) == kPoints && aligned(arguments.attention_weights, kOwnBytes) &&
          aligned(arguments.sampling_locations, 2 * kOwnBytes < 16 ? 2 * kOwnBytes : size_t{16});
      return four ? launch_forward_group<GroupConfig<T, kHeadDim, kFused, kWide, 8, kPoints, kLanes,
                                                     kGroupThreads, kGroupBlocks>>(
                        problem, arguments, stream)
                  : launch_forward_group<GroupConfig<T, kHeadDim, kFused, kWide, 8, 0, kLanes,
                                                     kGroupThreads, kGroupBlocks>>(
                        problem, arguments, stream);
    }
  }
  return launch_forward_group<
      GroupConfig<T, kHeadDim, kFused, kWide, 0, 0, kLanes, kGroupThreads, kGroupBlocks>>(
      problem, arguments, stream);
}

template <typename T, bool kFused, bool kWide, int kHeadDim>
cudaError_t run_usual(ForwardKernel kernel, const Problem& problem,
                      const ForwardArguments& arguments, cudaStream_t stream) {
  constexpr int kRounds = 3;
  return kernel == ForwardKernel::kSpread
             ? launch_forward_spread<SpreadConfig<T, kHeadDim, kFused, kWide, kRounds>>(
                   problem, arguments, stream)
             : run_group<T, kFused, kWide, kHeadDim>(problem, arguments, stream);
}

template <typename T, bool kFused, bool kWide>
cudaError_t run_usual(ForwardKernel kernel, const Problem& problem,
                      const ForwardArguments& arguments, cudaStream_t stream) {
  switch (problem.head_dim) {
    case 16:
      return run_usual<T, kFused, kWide, 16>(kernel, problem, arguments, stream);
    case 32:
      return run_usual<T, kFused, kWide, 32>(kernel, problem, arguments, stream);
    case 64:
      return run_usual<T, kFused, kWide, 64>(kernel, problem, arguments, stream);
  }
  return cudaErrorInvalidValue;
}

template <typename T, bool kFused>
cudaError_t run_usual(ForwardKernel kernel, const Problem& problem,
                      const ForwardArguments& arguments, cudaStream_t stream) {
  if constexpr (sizeof(T) == 2) {
    if (problem.location_type == DataType::kFloat32) {
      return run_usual<T, kFused, true>(kernel, problem, arguments, stream);
    }
  }
  return run_usual<T, kFused, false>(kernel, problem, arguments, stream);
}

template <typename T>
cudaError_t run_forward(ForwardKernel kernel, const Problem& problem,
                        const ForwardArguments& arguments, cudaStream_t stream) {
  if constexpr (sizeof(T) <= 4) {
    if (kernel != ForwardKernel::kGeneral) {
      return problem.locations == Locations::kGiven
                 ? run_usual<T, false>(kernel, problem, arguments, stream)
                 : run_usual<T, true>(kernel, problem, arguments, stream);
    }
  }
  return launch_forward<T>(problem, arguments, stream);
}

}  // namespace msda
