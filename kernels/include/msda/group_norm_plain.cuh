// Group normalisation: "plain" of group_norm_choice.h, which runs any problem. The kernel to read
// first.
//
// Problem   out = (x - mean) / sqrt(variance + eps) * weight + bias, with mean and variance over
//           the cells of an image and the channels of a group (Group Normalization,
//           arXiv:1803.08494, section 3.1).
// Layout    of a level: x [N,cells,C], weight [C], bias [C]. out [N,S,C] has the levels of an image
//           one after the other. Statistics and arithmetic are float (double with doubles).
// Threads   A launch computes a level. A block computes one group of one image: it reads the group
//           twice.
// Limits    those of check() in group_norm_params.h. Deterministic: a fixed order of sums.
#pragma once

#include "msda/cuda_launch.cuh"
#include "msda/group_norm_params.h"
#include "msda/quantize.cuh"
#include "msda/shifted_sums.cuh"
#include "msda/vector.cuh"

namespace msda {

inline constexpr int kPlainGroupNormThreads = 256;

template <typename T>
__global__ void __launch_bounds__(kPlainGroupNormThreads)
    group_norm_plain_kernel(const GroupNormLevel level, T* output, int8_t* quantized, int cells,
                            int all_cells, int channels, int groups, Accumulate<T> eps,
                            float quantized_factor) {
  using Real = Accumulate<T>;
  __shared__ ShiftedSums<Real> shared[kPlainGroupNormThreads];
  const int group_size = channels / groups;
  const int image = static_cast<int>(blockIdx.x) / groups;
  const int first_channel = static_cast<int>(blockIdx.x) % groups * group_size;
  const int64_t numbers = static_cast<int64_t>(cells) * group_size;
  const T* const x = static_cast<const T*>(level.x);

  // Calls visit(place of a number in x, cell, channel) for the thread's numbers.
  const auto for_each = [&](const auto& visit) {
    for (int64_t i = threadIdx.x; i < numbers; i += kPlainGroupNormThreads) {
      const int channel = first_channel + static_cast<int>(i % group_size);
      const int64_t cell = i / group_size;
      visit((static_cast<int64_t>(image) * cells + cell) * channels + channel, cell, channel);
    }
  };

  const Real shift = widen(x[static_cast<int64_t>(image) * cells * channels + first_channel]);
  ShiftedSums<Real> own;
  for_each(
      [&](int64_t place, int64_t, int) { own.add(static_cast<Real>(widen(x[place])) - shift); });
  shared[threadIdx.x] = own;
  add_parts(shared, kPlainGroupNormThreads, 1);
  const Real count = static_cast<Real>(numbers);
  const Moments<Real> all(shift, shared[0], count);
  const Real scale = 1 / sqrt(all.squares / count + eps);
  for_each([&](int64_t place, int64_t cell, int channel) {
    const Real weight = widen(static_cast<const T*>(level.weight)[channel]);
    const Real bias = widen(static_cast<const T*>(level.bias)[channel]);
    const T result = narrow<T>((widen(x[place]) - all.mean) * (scale * weight) + bias);
    const int64_t to = (static_cast<int64_t>(image) * all_cells + cell) * channels + channel;
    output[to] = result;
    if (quantized != nullptr) {
      quantized[to] = quantize<int8_t>(static_cast<float>(widen(result)) * quantized_factor);
    }
  });
}

template <typename T>
cudaError_t launch_group_norm_plain(const GroupNormProblem& problem,
                                    const GroupNormArguments& arguments, cudaStream_t stream) {
  const dim3 blocks(static_cast<unsigned>(problem.batch_size * problem.num_groups));
  T* output = static_cast<T*>(arguments.output);
  auto* quantized = static_cast<int8_t*>(arguments.quantized);
  for (int i = 0; i < problem.num_levels; ++i) {
    if (problem.cells[i] == 0) continue;
    const cudaError_t status =
        launch(group_norm_plain_kernel<T>, blocks, kPlainGroupNormThreads, stream,
               arguments.levels[i], output, quantized, static_cast<int>(problem.cells[i]),
               static_cast<int>(problem.num_cells()), static_cast<int>(problem.channels),
               static_cast<int>(problem.num_groups), static_cast<Accumulate<T>>(problem.eps),
               1 / problem.next_scale);
    if (status != cudaSuccess) return status;
    output += problem.cells[i] * problem.channels;
    if (quantized != nullptr) quantized += problem.cells[i] * problem.channels;
  }
  return cudaSuccess;
}

}  // namespace msda
