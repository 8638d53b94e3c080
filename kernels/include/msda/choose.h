// Which forward kernel takes a problem: the one place that decides, for every wrapper. Plain C++.
//
//   general  forward.cuh        any size, type, alignment
//   many     forward_group.cuh  the usual head sizes, many queries
//   medium   forward_group.cuh  an encoder's most usual sizes in 16 bits, fewer queries
//   few      forward_group.cuh  the usual head sizes, few queries
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

// Up to this many (n,q,m) are few: about what a large GPU's blocks of the kernel for few take at
// once.
inline constexpr int64_t kFewItems = 20000;

// Up to this many of an encoder are medium: a large GPU's blocks of the kernel for many go round
// ten times. The last round, in which not all have work, then costs more than large tiles save.
inline constexpr int64_t kMediumItems = 320000;

inline bool aligned(const void* address, size_t bytes) {
  return reinterpret_cast<uintptr_t>(address) % bytes == 0;
}

inline size_t size_of(DataType type) {
  switch (type) {
    case DataType::kFloat16:
    case DataType::kBFloat16:
      return 2;
    case DataType::kFloat32:
      return 4;
    case DataType::kFloat64:
      return 8;
  }
  return 0;
}

// Whether a tensor's rows, `stride` elements apart, all begin at multiples of so many bytes.
inline bool aligned_rows(const void* address, int64_t stride, DataType type, size_t bytes) {
  return aligned(address, bytes) && static_cast<size_t>(stride) * size_of(type) % bytes == 0;
}

// The number of points that all levels have, or 0.
inline int32_t equal_points(const Problem& problem) {
  for (int64_t level = 1; level < problem.num_levels; ++level) {
    if (problem.points_per_level[level] != problem.points_per_level[0]) return 0;
  }
  return problem.points_per_level[0];
}

// Whether the kernels with compiled-in head sizes, forward and backward, have been made for the
// problem's sizes and type.
inline bool has_usual_sizes(const Problem& problem) {
  const bool usual_head =
      problem.head_dim == 16 || problem.head_dim == 32 || problem.head_dim == 64;
  return usual_head && problem.value_type != DataType::kFloat64 &&
         problem.num_cells < (int64_t{1} << 26) &&  // five bits of a cell's signed word are taken
         problem.num_queries < INT32_MAX / 2 / problem.num_heads / problem.batch_size &&
         problem.total_points < INT32_MAX / 8 && problem.location_stride < INT32_MAX / 4 &&
         problem.weight_stride < INT32_MAX / 4 &&
         problem.num_heads * problem.head_dim < (int64_t{1} << 28);
}

// Whether they can take the problem.
inline bool has_usual_form(const Problem& problem, const ForwardArguments& arguments) {
  const size_t pair_bytes = 2 * size_of(problem.location_type);
  return has_usual_sizes(problem) && problem.num_cells >= 4 &&  // as an inner sample reads
         problem.location_type == problem.weight_type && aligned(arguments.value, 16) &&
         aligned(arguments.output, 16) &&
         aligned_rows(arguments.sampling_locations, problem.location_stride, problem.location_type,
                      pair_bytes) &&
         aligned(arguments.attention_weights, pair_bytes / 2) &&
         aligned(arguments.reference_points, 8);
}

// Whether kernels have been compiled for the heads and points: eight of 32 channels, and four of
// each of three to five levels, which are read at once.
inline bool has_compiled_points(const Problem& problem, const ForwardArguments& arguments) {
  return problem.head_dim == 32 && problem.num_heads == 8 && equal_points(problem) == 4 &&
         problem.num_levels >= 3 && problem.num_levels <= 5 &&
         problem.location_type == problem.value_type &&
         aligned_rows(arguments.sampling_locations, problem.location_stride, problem.location_type,
                      16) &&
         aligned_rows(arguments.attention_weights, problem.weight_stride, problem.weight_type, 16);
}

inline bool can_run(ForwardKernel kernel, const Problem& problem,
                    const ForwardArguments& arguments) {
  if (kernel == ForwardKernel::kGeneral) return true;
  // The kernel for few has heads and images in two dimensions of its grid.
  constexpr int64_t kMostBlocks = 65535;
  const bool launches = kernel != ForwardKernel::kFew ||
                        (problem.num_heads <= kMostBlocks && problem.batch_size <= kMostBlocks);
  if (kernel == ForwardKernel::kMedium &&
      !(size_of(problem.value_type) == 2 && has_compiled_points(problem, arguments))) {
    return false;
  }
  return launches && has_usual_form(problem, arguments);
}

// The fastest kernel.
inline ForwardKernel choose_forward(const Problem& problem, const ForwardArguments& arguments) {
  if (!has_usual_form(problem, arguments)) return ForwardKernel::kGeneral;
  const int64_t items = problem.batch_size * problem.num_queries * problem.num_heads;
  if (items <= kFewItems) return ForwardKernel::kFew;
  const bool medium = items <= kMediumItems && problem.num_queries == problem.num_cells &&
                      can_run(ForwardKernel::kMedium, problem, arguments);
  return medium ? ForwardKernel::kMedium : ForwardKernel::kMany;
}

}  // namespace msda
