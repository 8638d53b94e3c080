// Which backward kernel takes a problem: the one place that decides, for every wrapper. Plain C++.
//
//   general  backward.cuh        any size, type, alignment; deterministic sums
//   group    backward_group.cuh  the usual head sizes
//   tile     backward_group.cuh  the same, the queries in tiles of neighbouring cells
#pragma once

#include "msda/choose.h"

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

// The group kernels keep the weights' gradients of a fused problem's points in shared memory.
inline constexpr int32_t kMaxKeptPoints = 64;

// Whether the kernels with compiled-in head sizes can take the problem.
inline bool has_usual_form(const Problem& problem, const BackwardArguments& arguments) {
  const size_t pair_bytes = 2 * size_of(problem.location_type);
  return has_usual_sizes(problem) && !arguments.deterministic &&
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
  return kernel == BackwardKernel::kGeneral || has_usual_form(problem, arguments);
}

// The fastest kernel.
inline BackwardKernel choose_backward(const Problem& problem, const BackwardArguments& arguments) {
  if (!has_usual_form(problem, arguments)) return BackwardKernel::kGeneral;
  // As many queries as cells: an encoder, most likely, whose neighbours share cells.
  return problem.num_queries == problem.num_cells ? BackwardKernel::kTile : BackwardKernel::kGroup;
}

}  // namespace msda
