// Group normalisation by two kernels that read the map in vectors of 16 bytes: "vectors" of
// group_norm_choice.h.
//
// Problem   that of group_norm_plain.cuh, with groups of whole vectors.
// Parts     An image's cells are cut into parts of neighbouring cells, one for each block of both
//           kernels. A GPU has about as many parts as multiprocessors.
// Threads   A thread has one column, a vector of a cell, and one row: it takes every rows-th cell
// of
//           its block's part, kNormVectors of them at once.
// Moments   The first kernel writes the moments of each part and group to the work memory
//           [N, parts, groups, 2]. Every block of the second kernel merges those of its image.
// L2        The second kernel reads the map again, for maps of up to about 30 MB from the H200's
// L2.
//           Its blocks walk backwards, because what the first kernel read last is in L2 most
//           surely.
// Launch    From compute capability 9.0 on, blocks of the second kernel begin where the first
// kernel's
//           have ended, and wait for the others.
// Limits    those of check() in group_norm_params.h. Deterministic: a fixed order of sums.
#pragma once

#include "msda/cuda_launch.cuh"
#include "msda/group_norm_params.h"
#include "msda/moments.cuh"
#include "msda/vector.cuh"

namespace msda {

// Vectors that a thread has in flight.
inline constexpr int kNormVectors = 4;

// The sizes of a problem, and where a thread works.
struct NormLayout {
  int cells;  // of an image
  int groups;
  int columns;
  int rows;
  int parts;
  int part_cells;  // of a part; the first long_parts have one more
  int long_parts;

  explicit NormLayout(const GroupNormProblem& problem, int multiprocessors)
      : cells(static_cast<int>(problem.num_cells())),
        groups(static_cast<int>(problem.num_groups)),
        columns(static_cast<int>(group_norm_columns(problem))),
        rows(static_cast<int>(group_norm_rows(problem))),
        parts(static_cast<int>(group_norm_parts(problem, multiprocessors))),
        part_cells(cells / parts),
        long_parts(cells % parts) {}

  __device__ __forceinline__ int columns_of_group() const { return columns / groups; }
  __device__ __forceinline__ int first_cell(int part) const {
    return part * part_cells + min(part, long_parts);
  }
  __device__ __forceinline__ int image() const { return static_cast<int>(blockIdx.x) / parts; }
  __device__ __forceinline__ int part() const { return static_cast<int>(blockIdx.x) % parts; }
  __device__ __forceinline__ int column() const { return static_cast<int>(threadIdx.x) % columns; }
  __device__ __forceinline__ int row() const { return static_cast<int>(threadIdx.x) / columns; }
  // Steps of kNormVectors * rows cells through the block's part.
  __device__ __forceinline__ int steps() const {
    const int step = kNormVectors * rows;
    return (first_cell(part() + 1) - first_cell(part()) + step - 1) / step;
  }
  // The cell of the thread's vector i in a step, or -1 beyond the part.
  __device__ __forceinline__ int cell(int step, int i) const {
    const int found = first_cell(part()) + (step * kNormVectors + i) * rows + row();
    return row() < rows && found < first_cell(part() + 1) ? found : -1;
  }
  // The first element of the thread's vector in a cell, counted from the first image.
  template <typename T>
  __device__ __forceinline__ int64_t place(int cell) const {
    constexpr int kSize = 16 / sizeof(T);
    return ((static_cast<int64_t>(image()) * cells + cell) * columns + column()) * kSize;
  }
};

// Writes the moments of every part and group: their mean, and their sum of squared differences.
template <typename T>
__global__ void __launch_bounds__(kGroupNormThreads)
    group_moments_kernel(const __grid_constant__ NormLayout layout, const T* x,
                         Pair<Accumulate<T>>* moments) {
  using Real = Accumulate<T>;
  constexpr int kSize = 16 / sizeof(T);
  __shared__ Moments<Real> shared[kGroupNormThreads];
  begin_next_kernel();

  const int steps = layout.steps();
  Moments<Real> own;
  for (int step = 0; step < steps; ++step) {
    Vector<T, kSize> vectors[kNormVectors];
    int count = 0;
#pragma unroll
    for (int i = 0; i < kNormVectors; ++i) {
      const int cell = layout.cell(step, i);
      vectors[i] = load_if<T, kSize>(cell >= 0, x + layout.place<T>(max(cell, 0)));
      count += cell >= 0;
    }
    // Vectors beyond the part are the last ones of a step. They add zeros to the sum, and the
    // second loop leaves them out.
    Real sum = 0;
#pragma unroll
    for (int i = 0; i < kNormVectors * kSize; ++i) sum += vectors[i / kSize][i % kSize];
    Moments<Real> step_moments;
    step_moments.count = static_cast<Real>(count * kSize);
    step_moments.mean = sum / max(step_moments.count, Real(1));
#pragma unroll
    for (int i = 0; i < kNormVectors * kSize; ++i) {
      const Real difference = vectors[i / kSize][i % kSize] - step_moments.mean;
      if (i / kSize < count) step_moments.squares += difference * difference;
    }
    own.merge(step_moments);
  }

  const int of_group = layout.columns_of_group();
  const int thread = static_cast<int>(threadIdx.x);
  if (layout.row() < layout.rows) {
    const int part = layout.row() * of_group + layout.column() % of_group;
    shared[part * layout.groups + layout.column() / of_group] = own;
  }
  merge_parts(shared, layout.rows * of_group, layout.groups);
  if (thread < layout.groups) {
    moments[static_cast<int64_t>(blockIdx.x) * layout.groups + thread] = {shared[thread].mean,
                                                                          shared[thread].squares};
  }
}

// Normalises the cells of every part.
template <typename T>
__global__ void __launch_bounds__(kGroupNormThreads)
    group_scale_kernel(const __grid_constant__ NormLayout layout,
                       const __grid_constant__ GroupNormArguments arguments, Accumulate<T> eps) {
  using Real = Accumulate<T>;
  constexpr int kSize = 16 / sizeof(T);
  __shared__ Moments<Real> shared[kGroupNormThreads];
  const T* const x = static_cast<const T*>(arguments.x);
  const int thread = static_cast<int>(threadIdx.x);
  const auto weight =
      load<T, kSize>(static_cast<const T*>(arguments.weight) + layout.column() * kSize);
  const auto bias = load<T, kSize>(static_cast<const T*>(arguments.bias) + layout.column() * kSize);

  wait_for_last_kernel();
  const int merging = min(kGroupNormThreads / layout.groups, layout.parts);
  if (thread < merging * layout.groups) {
    const auto* const moments = static_cast<const Pair<Real>*>(arguments.work) +
                                static_cast<int64_t>(layout.image()) * layout.parts * layout.groups;
    const int group_size = layout.columns_of_group() * kSize;
    Moments<Real> own;
    for (int part = thread / layout.groups; part < layout.parts; part += merging) {
      const Pair<Real> one = moments[part * layout.groups + thread % layout.groups];
      const int cells = layout.part_cells + (part < layout.long_parts);
      own.merge({static_cast<Real>(cells) * group_size, one.x, one.y});
    }
    shared[thread] = own;
  }
  merge_parts(shared, merging, layout.groups);

  const Moments<Real> group = shared[layout.column() / layout.columns_of_group()];
  const Real scale = 1 / sqrt(group.squares / group.count + eps);
  Real scales[kSize];
#pragma unroll
  for (int i = 0; i < kSize; ++i) scales[i] = scale * weight[i];
  for (int step = layout.steps() - 1; step >= 0; --step) {
    Vector<T, kSize> vectors[kNormVectors];
#pragma unroll
    for (int i = 0; i < kNormVectors; ++i) {
      const int cell = layout.cell(step, i);
      vectors[i] = load_if<T, kSize>(cell >= 0, x + layout.place<T>(max(cell, 0)));
    }
#pragma unroll
    for (int i = 0; i < kNormVectors; ++i) {
      const int cell = layout.cell(step, i);
      Vector<T, kSize> result;
#pragma unroll
      for (int j = 0; j < kSize; ++j) {
        result.set(j, (vectors[i][j] - group.mean) * scales[j] + bias[j]);
      }
      if (cell >= 0) {
        store_past_l1(static_cast<T*>(arguments.output) + layout.place<T>(cell),
                      bits<uint4>(result));
      }
    }
  }
}

template <typename T>
cudaError_t launch_group_norm_vectors(const GroupNormProblem& problem,
                                      const GroupNormArguments& arguments, cudaStream_t stream) {
  int multiprocessors = 0;
  cudaError_t status = get_attribute(cudaDevAttrMultiProcessorCount, multiprocessors);
  if (status != cudaSuccess) return status;
  const NormLayout layout(problem, multiprocessors);
  const dim3 blocks(static_cast<unsigned>(problem.batch_size * layout.parts));
  status =
      launch(group_moments_kernel<T>, blocks, kGroupNormThreads, stream, layout,
             static_cast<const T*>(arguments.x), static_cast<Pair<Accumulate<T>>*>(arguments.work));
  if (status != cudaSuccess) return status;
  return launch_early(group_scale_kernel<T>, blocks, kGroupNormThreads, stream, layout, arguments,
                      static_cast<Accumulate<T>>(problem.eps));
}

}  // namespace msda
