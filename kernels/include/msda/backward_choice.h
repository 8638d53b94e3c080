// Which backward kernel runs a problem: this file decides for every wrapper. Plain C++.
//
//   general  backward_general.cuh  any size, type and alignment; deterministic sums
//   group    backward_group.cuh    16, 32 or 64 channels a head
//   tile     backward_group.cuh    the same; a block takes a tile of queries
//
// The names are the values of MSDA_BACKWARD, which forces a kernel.
#pragma once

#include "msda/forward_choice.h"

namespace msda {

enum class BackwardKernel : int32_t { kGeneral, kGroup, kTile };

inline constexpr BackwardKernel kBackwardKernels[] = {
    BackwardKernel::kGeneral, BackwardKernel::kGroup, BackwardKernel::kTile};

inline const char* name(BackwardKernel kernel) {
  switch (kernel) {
    case BackwardKernel::kGeneral:
      return "general";
    case BackwardKernel::kGroup:
      return "group";
    case BackwardKernel::kTile:
      return "tile";
  }
  return "unknown";
}

// The group kernels keep the weight gradients of a fused problem's points in shared memory.
inline constexpr int32_t kMaxKeptPoints = 64;

// Whether the group kernels can run the problem.
inline bool fits_group_kernels(const Problem& problem, const BackwardArguments& arguments) {
  const size_t pair_bytes = 2 * size_of(problem.location_type);
  return has_group_sizes(problem) && !arguments.deterministic &&
         (problem.locations == Locations::kGiven || problem.total_points <= kMaxKeptPoints) &&
         aligned(arguments.forward.value, 4 * size_of(problem.value_type)) &&
         aligned(arguments.grad_output, 4 * size_of(problem.value_type)) &&
         aligned(arguments.grad_value, 16) &&
         aligned(arguments.forward.sampling_locations, pair_bytes) &&
         aligned(arguments.grad_sampling_locations, pair_bytes) &&
         aligned(arguments.forward.reference_points, 8);
}

inline bool can_run(BackwardKernel kernel, const Problem& problem,
                    const BackwardArguments& arguments) {
  return kernel == BackwardKernel::kGeneral || fits_group_kernels(problem, arguments);
}

// The fastest kernel.
inline BackwardKernel choose_backward(const Problem& problem, const BackwardArguments& arguments) {
  if (!fits_group_kernels(problem, arguments)) return BackwardKernel::kGeneral;
  // As many queries as cells: probably an encoder, whose neighbouring queries share cells.
  return problem.num_queries == problem.num_cells ? BackwardKernel::kTile : BackwardKernel::kGroup;
}

}  // namespace msda
