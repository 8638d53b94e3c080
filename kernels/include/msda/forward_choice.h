// Which forward kernel runs a problem: this file decides for every wrapper. Plain C++.
//
//   general  forward_general.cuh  any size, type and alignment
//   many     forward_group.cuh    16, 32 or 64 channels a head; many queries
//   medium   forward_group.cuh    16-bit values, 8 heads of 32 channels, 3 to 5 levels of 4 points;
//                                 an encoder of fewer queries
//   few      forward_group.cuh    16, 32 or 64 channels a head; few queries
//
// int8 values have general; many, with the sizes of medium; and few, with these sizes and boxes.
//
// The names are the values of MSDA_FORWARD, which forces a kernel.
#pragma once

#include <cstdint>

#include "msda/params.h"

namespace msda {

enum class ForwardKernel : int32_t { kGeneral, kMany, kMedium, kFew };

inline constexpr ForwardKernel kForwardKernels[] = {ForwardKernel::kGeneral, ForwardKernel::kMany,
                                                    ForwardKernel::kMedium, ForwardKernel::kFew};

inline const char* name(ForwardKernel kernel) {
  switch (kernel) {
    case ForwardKernel::kGeneral:
      return "general";
    case ForwardKernel::kMany:
      return "many";
    case ForwardKernel::kMedium:
      return "medium";
    case ForwardKernel::kFew:
      return "few";
  }
  return "unknown";
}

// Up to this many (n,q,m) are few: about as many as the blocks of "few" hold on a large GPU.
inline constexpr int64_t kFewItems = 20000;

// Up to this many (n,q,m) of an encoder are medium: ten tiles for each block of "many" on a large
// GPU. The tail wave then costs more than large tiles save: 84 us instead of 81 at 608x608, which
// has 246,280 (fp16, fused, near; H200).
inline constexpr int64_t kMediumItems = 320000;

inline bool aligned(const void* address, size_t bytes) {
  return reinterpret_cast<uintptr_t>(address) % bytes == 0;
}

// Whether the numbers of every query, `stride` elements apart, begin at a multiple of `bytes`.
inline bool aligned_queries(const void* address, int64_t stride, DataType type, size_t bytes) {
  return aligned(address, bytes) && static_cast<size_t>(stride) * size_of(type) % bytes == 0;
}

// The number of points that all levels have, or 0.
inline int32_t equal_points(const Problem& problem) {
  for (int64_t level = 1; level < problem.num_levels; ++level) {
    if (problem.points_per_level[level] != problem.points_per_level[0]) return 0;
  }
  return problem.points_per_level[0];
}

// Whether the group kernels, forward and backward, are compiled for the problem's sizes and type.
inline bool has_group_sizes(const Problem& problem) {
  const bool compiled_head =
      problem.head_dim == 16 || problem.head_dim == 32 || problem.head_dim == 64;
  return compiled_head && problem.value_type != DataType::kFloat64 &&
         problem.num_cells < (int64_t{1} << 26) &&  // a masked sample's word has 5 more bits
         problem.num_queries < INT32_MAX / 2 / problem.num_heads / problem.batch_size &&
         problem.total_points < INT32_MAX / 8 && problem.location_stride < INT32_MAX / 4 &&
         problem.weight_stride < INT32_MAX / 4 &&
         problem.num_heads * problem.head_dim < (int64_t{1} << 28);
}

// Whether they can run the problem.
inline bool fits_group_kernels(const Problem& problem, const ForwardArguments& arguments) {
  const size_t pair_bytes = 2 * size_of(problem.location_type);
  return has_group_sizes(problem) && problem.num_cells >= 4 &&  // of a clamped sample
         problem.location_type == problem.weight_type && aligned(arguments.value, 16) &&
         aligned(arguments.output, 16) &&
         aligned_queries(arguments.sampling_locations, problem.location_stride,
                         problem.location_type, pair_bytes) &&
         aligned(arguments.attention_weights, pair_bytes / 2) &&
         aligned(arguments.reference_points, 8);
}

// Whether kernels are compiled for the levels: 3 to 5 levels of 4 points, with 8 heads of 32
// channels. They read four points at once.
inline bool has_known_levels(const Problem& problem, const ForwardArguments& arguments) {
  return problem.head_dim == 32 && problem.num_heads == 8 && equal_points(problem) == 4 &&
         problem.num_levels >= 3 && problem.num_levels <= 5 &&
         problem.location_type == problem.value_type &&
         aligned_queries(arguments.sampling_locations, problem.location_stride,
                         problem.location_type, 16) &&
         aligned_queries(arguments.attention_weights, problem.weight_stride, problem.weight_type,
                         16);
}

inline bool can_run(ForwardKernel kernel, const Problem& problem,
                    const ForwardArguments& arguments) {
  if (kernel == ForwardKernel::kGeneral) return true;
  // The grid of "few" has a dimension for heads and one for images.
  constexpr int64_t kMostBlocks = 65535;
  const bool launches = kernel != ForwardKernel::kFew ||
                        (problem.num_heads <= kMostBlocks && problem.batch_size <= kMostBlocks);
  if (problem.int8_value) {
    const bool compiled =
        kernel == ForwardKernel::kMany ||
        (kernel == ForwardKernel::kFew && problem.locations == Locations::kReferenceBoxes);
    return compiled && launches && has_known_levels(problem, arguments) &&
           fits_group_kernels(problem, arguments);
  }
  if (kernel == ForwardKernel::kMedium &&
      !(size_of(problem.value_type) == 2 && has_known_levels(problem, arguments))) {
    return false;
  }
  return launches && fits_group_kernels(problem, arguments);
}

// The fastest kernel.
inline ForwardKernel choose_forward(const Problem& problem, const ForwardArguments& arguments) {
  if (!fits_group_kernels(problem, arguments)) return ForwardKernel::kGeneral;
  const int64_t items = problem.batch_size * problem.num_queries * problem.num_heads;
  if (problem.int8_value) {
    const bool few = items <= kFewItems && can_run(ForwardKernel::kFew, problem, arguments);
    if (few) return ForwardKernel::kFew;
    return can_run(ForwardKernel::kMany, problem, arguments) ? ForwardKernel::kMany
                                                             : ForwardKernel::kGeneral;
  }
  if (items <= kFewItems) return ForwardKernel::kFew;
  const bool medium = items <= kMediumItems && problem.num_queries == problem.num_cells &&
                      can_run(ForwardKernel::kMedium, problem, arguments);
  return medium ? ForwardKernel::kMedium : ForwardKernel::kMany;
}

}  // namespace msda
