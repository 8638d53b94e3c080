// From a problem to a compiled kernel. Each value type is compiled in a file of its own
// (kernels/src).
#pragma once

#include "msda/choose.h"
#include "msda/forward.cuh"
#include "msda/forward_group.cuh"

namespace msda {

// Runs a kernel that can_run() the problem.
template <typename T>
cudaError_t run_forward(ForwardKernel kernel, const Problem& problem,
                        const ForwardArguments& arguments, cudaStream_t stream);

// Threads of a block, blocks of a multiprocessor, samples that a lane reads together; measured
// with kernels/lab/forward.cu. Many queries: as many warps as fit hide the time that memory takes.
// Medium: as many, in smaller blocks. Few: there are not so many, so every warp has more loads
// under way.
template <typename T, ForwardKernel kKernel>
struct GroupShape {
  static constexpr bool kFew = kKernel == ForwardKernel::kFew;
  static constexpr bool kMedium = kKernel == ForwardKernel::kMedium;
  static constexpr int kThreads = kFew ? 128 : kMedium ? 256 : sizeof(T) == 2 ? 512 : 384;
  static constexpr int kBlocks = kFew || kMedium ? 4 : 2;
  static constexpr int kFlight = !kFew ? 1 : sizeof(T) == 2 ? 4 : 2;
};

template <typename T, int kHeadDim, Locations kLocations, bool kWide, ForwardKernel kKernel>
cudaError_t run_group(const Problem& problem, const ForwardArguments& arguments,
                      cudaStream_t stream) {
  using Shape = GroupShape<T, kKernel>;
#define MSDA_GROUP(NUM_HEADS, LEVELS)                                                              \
  launch_forward_group<GroupConfig<T, kHeadDim, kLocations, kWide, NUM_HEADS, LEVELS, Shape::kFew, \
                                   Shape::kThreads, Shape::kBlocks, Shape::kFlight>>(              \
      problem, arguments, stream)
  if constexpr (kHeadDim == 32 && !kWide) {
    if (has_compiled_points(problem, arguments)) {
      switch (problem.num_levels) {
        case 3:
          return MSDA_GROUP(8, 3);
        case 4:
          return MSDA_GROUP(8, 4);
        case 5:
          return MSDA_GROUP(8, 5);
      }
    }
  }
  if constexpr (Shape::kMedium) {
    return cudaErrorInvalidValue;
  } else {
    return MSDA_GROUP(0, 0);
  }
#undef MSDA_GROUP
}

template <typename T, int kHeadDim, Locations kLocations, bool kWide>
cudaError_t run_group(ForwardKernel kernel, const Problem& problem,
                      const ForwardArguments& arguments, cudaStream_t stream) {
  if constexpr (sizeof(T) == 2 && kHeadDim == 32 && !kWide) {
    if (kernel == ForwardKernel::kMedium) {
      return run_group<T, kHeadDim, kLocations, kWide, ForwardKernel::kMedium>(problem, arguments,
                                                                               stream);
    }
  }
  return kernel == ForwardKernel::kFew
             ? run_group<T, kHeadDim, kLocations, kWide, ForwardKernel::kFew>(problem, arguments,
                                                                              stream)
             : run_group<T, kHeadDim, kLocations, kWide, ForwardKernel::kMany>(problem, arguments,
                                                                               stream);
}

template <typename T, Locations kLocations, bool kWide>
cudaError_t run_group(ForwardKernel kernel, const Problem& problem,
                      const ForwardArguments& arguments, cudaStream_t stream) {
  switch (problem.head_dim) {
    case 16:
      return run_group<T, 16, kLocations, kWide>(kernel, problem, arguments, stream);
    case 32:
      return run_group<T, 32, kLocations, kWide>(kernel, problem, arguments, stream);
    case 64:
      return run_group<T, 64, kLocations, kWide>(kernel, problem, arguments, stream);
  }
  return cudaErrorInvalidValue;
}

template <typename T, Locations kLocations>
cudaError_t run_group(ForwardKernel kernel, const Problem& problem,
                      const ForwardArguments& arguments, cudaStream_t stream) {
  if constexpr (sizeof(T) == 2) {
    if (problem.location_type == DataType::kFloat32) {
      return run_group<T, kLocations, true>(kernel, problem, arguments, stream);
    }
  }
  return run_group<T, kLocations, false>(kernel, problem, arguments, stream);
}

template <typename T>
cudaError_t run_forward(ForwardKernel kernel, const Problem& problem,
                        const ForwardArguments& arguments, cudaStream_t stream) {
  if constexpr (sizeof(T) <= 4) {
    if (kernel != ForwardKernel::kGeneral) {
      switch (problem.locations) {
        case Locations::kGiven:
          return run_group<T, Locations::kGiven>(kernel, problem, arguments, stream);
        case Locations::kReferencePoints:
          return run_group<T, Locations::kReferencePoints>(kernel, problem, arguments, stream);
        case Locations::kReferenceBoxes:
          return run_group<T, Locations::kReferenceBoxes>(kernel, problem, arguments, stream);
      }
      return cudaErrorInvalidValue;
    }
  }
  return launch_forward<T>(problem, arguments, stream);
}

}  // namespace msda
