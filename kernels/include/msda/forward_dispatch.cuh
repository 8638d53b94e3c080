// From a problem to a compiled forward kernel. kernels/src compiles each value type by itself.
#pragma once

#include "msda/forward_choice.h"
#include "msda/forward_general.cuh"
#include "msda/forward_group.cuh"

namespace msda {

// The launch of each kernel, the fastest of those that kernels/lab measured
// (kernels/lab/README.md).
//   many    As many warps as fit hide the latency of memory.
//   medium  The same warps in smaller blocks, which shorten the tail wave: 81 us instead of 84 at
//           608x608, but 191 us instead of 183 at 768x1152 (fp16, fused, near; H200).
//   few     The GPU is not full, so each lane has more loads under way: 7.0 us instead of 12.2 with
//           the launch of "many" (900 queries at 768x1152, fp16, boxes; H200).
template <typename T, ForwardKernel kKernel>
constexpr GroupSpec group_launch() {
  constexpr bool k16Bit = sizeof(T) == 2;
  switch (kKernel) {
    case ForwardKernel::kFew:
      return {
          .persistent = false, .threads = 128, .blocks = 4, .samples_in_flight = k16Bit ? 4 : 2};
    case ForwardKernel::kMedium:
      return {.threads = 256, .blocks = 4};
    default:
      return {.threads = k16Bit ? 512 : 384, .blocks = 2};
  }
}

// head_dim, locations and float_inputs are those of `kForm`.
template <typename T, ForwardKernel kKernel, GroupSpec kForm>
cudaError_t run_group(const Problem& problem, const ForwardArguments& arguments,
                      cudaStream_t stream) {
  const auto run = [&](auto num_heads, auto num_levels) {
    constexpr GroupSpec kSpec = [] {
      GroupSpec spec = group_launch<T, kKernel>();
      spec.head_dim = kForm.head_dim;
      spec.locations = kForm.locations;
      spec.float_inputs = kForm.float_inputs;
      spec.num_heads = decltype(num_heads)::value;
      spec.num_levels = decltype(num_levels)::value;
      return spec;
    }();
    return launch_forward_group<GroupConfig<T, kSpec>>(problem, arguments, stream);
  };
  if constexpr (kForm.head_dim == 32 && !kForm.float_inputs) {
    if (has_known_levels(problem, arguments)) {
      return with_constant<3, 4, 5>(problem.num_levels, [&](auto num_levels) {
        return run(std::integral_constant<int, 8>(), num_levels);
      });
    }
  }
  if constexpr (kKernel == ForwardKernel::kMedium) {
    return cudaErrorInvalidValue;
  } else {
    return run(std::integral_constant<int, 0>(), std::integral_constant<int, 0>());
  }
}

template <typename T, GroupSpec kForm>
cudaError_t run_group(ForwardKernel kernel, const Problem& problem,
                      const ForwardArguments& arguments, cudaStream_t stream) {
  if constexpr (sizeof(T) == 2 && kForm.head_dim == 32 && !kForm.float_inputs) {
    if (kernel == ForwardKernel::kMedium) {
      return run_group<T, ForwardKernel::kMedium, kForm>(problem, arguments, stream);
    }
  }
  return kernel == ForwardKernel::kFew
             ? run_group<T, ForwardKernel::kFew, kForm>(problem, arguments, stream)
             : run_group<T, ForwardKernel::kMany, kForm>(problem, arguments, stream);
}

// Kernels of int8 values. "many" has four blocks of 256 threads: 138 us and 61 us at 768x1152 and
// 608x608, 141 and 62 with two of 512, 142 and 68 with one of 1,024 (fp16, near; H100).
template <typename T>
cudaError_t run_int8(ForwardKernel kernel, const Problem& problem,
                     const ForwardArguments& arguments, cudaStream_t stream) {
  return with_constant<3, 4, 5>(problem.num_levels, [&](auto num_levels) {
    const auto run = [&](auto launch, auto locations) {
      constexpr GroupSpec kSpec = [] {
        GroupSpec spec = group_launch<T, decltype(launch)::value>();
        spec.locations = decltype(locations)::value;
        spec.int8_value = true;
        spec.num_heads = 8;
        spec.num_levels = decltype(num_levels)::value;
        return spec;
      }();
      return launch_forward_group<GroupConfig<T, kSpec>>(problem, arguments, stream);
    };
    const std::integral_constant<ForwardKernel, ForwardKernel::kMedium> many;
    const std::integral_constant<ForwardKernel, ForwardKernel::kFew> few;
    const std::integral_constant<Locations, Locations::kReferencePoints> points;
    const std::integral_constant<Locations, Locations::kReferenceBoxes> boxes;
    if (kernel == ForwardKernel::kFew) return run(few, boxes);
    return problem.locations == Locations::kReferencePoints ? run(many, points) : run(many, boxes);
  });
}

// Runs a kernel that can_run() the problem.
template <typename T>
cudaError_t run_forward(ForwardKernel kernel, const Problem& problem,
                        const ForwardArguments& arguments, cudaStream_t stream) {
  if (kernel == ForwardKernel::kGeneral) return launch_forward<T>(problem, arguments, stream);
  if constexpr (sizeof(T) == 2) {
    if (problem.int8_value) return run_int8<T>(kernel, problem, arguments, stream);
  }
  if constexpr (sizeof(T) <= 4) {
    const bool float_inputs = sizeof(T) == 2 && problem.location_type == DataType::kFloat32;
    return with_constant<0, 1, 2>(static_cast<int>(problem.locations), [&](auto locations) {
      return with_constant<16, 32, 64>(problem.head_dim, [&](auto head_dim) {
        return with_constant < 0,
               sizeof(T) == 2 > (float_inputs, [&](auto floats) {
                              constexpr GroupSpec kForm{
                                  .head_dim = decltype(head_dim)::value,
                                  .locations = static_cast<Locations>(decltype(locations)::value),
                                  .float_inputs = decltype(floats)::value != 0};
                              return run_group<T, kForm>(kernel, problem, arguments, stream);
                            });
      });
    });
  }
  return cudaErrorInvalidValue;
}

}  // namespace msda
