// Group normalisation: "plain" of group_norm_choice.h, which runs any problem. The kernel to read
// first.
//
// Problem   out = (x - mean) / sqrt(variance + eps) * weight + bias, with mean and variance over
//           the cells of an image and the channels of a group (Group Normalization,
//           arXiv:1803.08494, section 3.1).
// Layout    x [N,H,W,C], weight [C], bias [C], out [N,H,W,C]. Statistics and arithmetic are float
//           (double with doubles).
// Threads   A block computes one group of one image: it reads the group twice.
// Limits    those of check() in group_norm_params.h. Deterministic: a fixed order of sums.
#pragma once

#include "msda/cuda_launch.cuh"
#include "msda/group_norm_params.h"
#include "msda/shifted_sums.cuh"
#include "msda/vector.cuh"

namespace msda {

inline constexpr int kPlainGroupNormThreads = 256;

template <typename T>
__global__ void __launch_bounds__(kPlainGroupNormThreads)
    group_norm_plain_kernel(const __grid_constant__ GroupNormArguments arguments, int cells,
                            int channels, int groups, Accumulate<T> eps) {
  using Real = Accumulate<T>;
  __shared__ ShiftedSums<Real> shared[kPlainGroupNormThreads];
  const int group_size = channels / groups;
  const int image = static_cast<int>(blockIdx.x) / groups;
  const int first_channel = static_cast<int>(blockIdx.x) % groups * group_size;
  const int64_t numbers = static_cast<int64_t>(cells) * group_size;
  const T* const x = static_cast<const T*>(arguments.x);

  // Calls visit(place of a number, its channel) for the thread's numbers.
  const auto for_each = [&](const auto& visit) {
    for (int64_t i = threadIdx.x; i < numbers; i += kPlainGroupNormThreads) {
      const int channel = first_channel + static_cast<int>(i % group_size);
      visit((static_cast<int64_t>(image) * cells + i / group_size) * channels + channel, channel);
    }
  };

  const Real shift = widen(x[static_cast<int64_t>(image) * cells * channels + first_channel]);
  ShiftedSums<Real> own;
  for_each([&](int64_t place, int) { own.add(static_cast<Real>(widen(x[place])) - shift); });
  shared[threadIdx.x] = own;
  add_parts(shared, kPlainGroupNormThreads, 1);
  const Real count = static_cast<Real>(numbers);
  const Moments<Real> all(shift, shared[0], count);
  const Real scale = 1 / sqrt(all.squares / count + eps);
  for_each([&](int64_t place, int channel) {
    const Real weight = widen(static_cast<const T*>(arguments.weight)[channel]);
    const Real bias = widen(static_cast<const T*>(arguments.bias)[channel]);
    static_cast<T*>(arguments.output)[place] =
        narrow<T>((widen(x[place]) - all.mean) * (scale * weight) + bias);
  });
}

template <typename T>
cudaError_t launch_group_norm_plain(const GroupNormProblem& problem,
                                    const GroupNormArguments& arguments, cudaStream_t stream) {
  const dim3 blocks(static_cast<unsigned>(problem.batch_size * problem.num_groups));
  return launch(group_norm_plain_kernel<T>, blocks, kPlainGroupNormThreads, stream, arguments,
                static_cast<int>(problem.num_cells()), static_cast<int>(problem.channels),
                static_cast<int>(problem.num_groups), static_cast<Accumulate<T>>(problem.eps));
}

}  // namespace msda
