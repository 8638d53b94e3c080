// Group normalisation by two kernels that read the map in vectors of 16 bytes: "vectors" of
// group_norm_choice.h.
//
// Problem   that of group_norm_plain.cuh, with groups of whole vectors.
// Parts     The cells of each level of an image are cut into parts of neighbouring cells, one for
//           each block of both kernels. group_norm_part() says how many.
// Threads   A thread has one column, a vector of a cell, and one row: it takes every rows-th cell
//           of its block's part, kNormVectors of them at once.
// Moments   The first kernel writes the moments of each part and group to the work memory
//           [N, parts, groups, 2]. Every block of the second kernel adds up those of its level.
// Launch    From compute capability 9.0 on, blocks of each kernel begin before the kernel before
//           has ended, and wait for it. A multiprocessor has room for a block of each.
// Shared    A block of the second kernel that has a multiprocessor to itself copies its part, or
//           what fits of it, into shared memory before it waits. So both kernels read the map at
//           the same time, from DRAM once. An H200 holds maps of up to 28 MB.
// L2        Blocks of the second kernel read all other cells again, and walk backwards: what the
//           first kernel read last is in L2 most surely.
// Limits    those of check() in group_norm_params.h. Deterministic: a fixed order of sums.
#pragma once

#include "msda/cuda_launch.cuh"
#include "msda/group_norm_params.h"
#include "msda/quantize.cuh"
#include "msda/shifted_sums.cuh"
#include "msda/tensor_core.cuh"
#include "msda/vector.cuh"

namespace msda {

// Vectors, and moments of parts, that a thread has in flight.
inline constexpr int kNormVectors = 4;
inline constexpr int kNormMoments = 8;
inline constexpr int kStagedBytes = kGroupNormThreads * 16;  // a vector of each thread

struct NormLayout {
  struct Level {
    int cells;  // of an image
    int first_cell;
    int parts;
    int first_part;
    int part_cells;  // of a part; the first long_parts have one more
    int long_parts;

    __device__ __forceinline__ int cells_of(int part) const {
      return part_cells + (part < long_parts);
    }
  };
  Level levels[kMostNormLevels];
  int num_levels;
  int cells;  // of all levels of an image
  int parts;
  int groups;
  int columns;
  int columns_of_group;
  int rows;

  NormLayout(const GroupNormProblem& problem, int multiprocessors)
      : num_levels(static_cast<int>(problem.num_levels)),
        cells(0),
        parts(0),
        groups(static_cast<int>(problem.num_groups)),
        columns(static_cast<int>(group_norm_columns(problem))),
        columns_of_group(columns / groups),
        rows(static_cast<int>(group_norm_rows(problem))) {
    const int most = static_cast<int>(group_norm_part(problem, multiprocessors));
    for (int i = 0; i < num_levels; ++i) {
      Level& level = levels[i];
      level.cells = static_cast<int>(problem.cells[i]);
      level.first_cell = cells;
      level.parts = (level.cells + most - 1) / most;
      level.first_part = parts;
      level.part_cells = level.parts == 0 ? 0 : level.cells / level.parts;
      level.long_parts = level.cells - level.part_cells * level.parts;
      cells += level.cells;
      parts += level.parts;
    }
  }

  __device__ __forceinline__ int level_of(int part) const {
    int level = 0;
    while (level + 1 < num_levels && part >= levels[level + 1].first_part) ++level;
    return level;
  }
};

// Where a thread works: on a column of every rows-th cell of its block's part.
template <typename T>
struct NormThread {
  static constexpr int kSize = 16 / sizeof(T);

  int image, level, column, row;
  int vectors;  // the same number for all threads of the block
  int group;
  int group_column;      // the column in its group
  int numbers;           // of a group in the block's part
  int64_t first_number;  // place of the first of them in x

  __device__ __forceinline__ explicit NormThread(const NormLayout& layout)
      : columns_(layout.columns), rows_(layout.rows) {
    const int thread = static_cast<int>(threadIdx.x);
    image = static_cast<int>(blockIdx.x) / layout.parts;
    row = thread / layout.columns;
    column = thread - row * layout.columns;
    group = column / layout.columns_of_group;
    group_column = column - group * layout.columns_of_group;
    int part = static_cast<int>(blockIdx.x) - image * layout.parts;
    level = layout.level_of(part);
    const NormLayout::Level& own = layout.levels[level];
    part -= own.first_part;
    const int start = part * own.part_cells + min(part, own.long_parts);
    const int cells = own.cells_of(part);
    vectors = (cells + layout.rows - 1) / layout.rows;
    numbers = cells * layout.columns_of_group * kSize;
    first_ = start + row;
    end_ = row < layout.rows ? start + cells : 0;  // threads beyond the last row have no cell
    const auto element = [&](int64_t cell) { return (cell * layout.columns + column) * kSize; };
    first_element_ = element(static_cast<int64_t>(image) * own.cells);
    first_result_ = element(static_cast<int64_t>(image) * layout.cells + own.first_cell);
    first_number =
        first_element_ + (static_cast<int64_t>(start) * layout.columns - group_column) * kSize;
  }

  __device__ __forceinline__ bool works() const { return end_ > 0; }
  // The cell of a vector, and whether the part has it.
  __device__ __forceinline__ int cell(int vector) const { return first_ + vector * rows_; }
  __device__ __forceinline__ bool has(int cell) const { return cell < end_; }
  // Where the thread's vector of a cell begins in the output.
  __device__ __forceinline__ int64_t result_place(int cell) const {
    return first_result_ + offset(cell);
  }
  // Where the thread's vector of a cell begins in x.
  __device__ __forceinline__ const T* place(const T* x, int cell) const {
    return x + first_element_ + offset(cell);
  }
  // Loads vectors from number `first` on; zeros beyond the part.
  __device__ __forceinline__ void load_some(const T* x, int first,
                                            Vector<T, kSize> (&some)[kNormVectors]) const {
#pragma unroll
    for (int i = 0; i < kNormVectors; ++i) {
      const int at = cell(first + i);
      some[i] = load_if<T, kSize>(has(at), place(x, at));
    }
  }

 private:
  __device__ __forceinline__ int64_t offset(int cell) const {
    return static_cast<int64_t>(cell) * (columns_ * kSize);
  }

  int columns_, rows_, first_, end_;
  int64_t first_element_, first_result_;
};

// Writes the moments of every part and group: their mean, and their sum of squared differences.
template <typename T>
__global__ void __launch_bounds__(kGroupNormThreads)
    group_moments_kernel(const __grid_constant__ NormLayout layout,
                         const __grid_constant__ GroupNormArguments arguments) {
  using Real = Accumulate<T>;
  constexpr int kSize = 16 / sizeof(T);
  __shared__ ShiftedSums<Real> shared[kGroupNormThreads];
  const NormThread<T> own(layout);
  const T* const x = static_cast<const T*>(arguments.levels[own.level].x);
  wait_for_last_kernel();
  begin_next_kernel();  // here, because the second kernel reads x before it waits

  const Real shift = widen(x[own.first_number]);
  ShiftedSums<Real> sums;
  Vector<T, kSize> vectors[kNormVectors];
  own.load_some(x, 0, vectors);
  for (int first = 0; first < own.vectors; first += kNormVectors) {
    Vector<T, kSize> next[kNormVectors];
    own.load_some(x, first + kNormVectors, next);
#pragma unroll
    for (int i = 0; i < kNormVectors; ++i) {
      if (!own.has(own.cell(first + i))) continue;
#pragma unroll
      for (int j = 0; j < kSize; ++j) sums.add(vectors[i][j] - shift);
    }
#pragma unroll
    for (int i = 0; i < kNormVectors; ++i) vectors[i] = next[i];
  }

  if (own.works()) {
    const int part = own.row * layout.columns_of_group + own.group_column;
    shared[part * layout.groups + own.group] = sums;
  }
  add_parts(shared, layout.rows * layout.columns_of_group, layout.groups);
  if (own.row == 0 && own.group_column == 0) {
    const Moments<Real> all(shift, shared[own.group], static_cast<Real>(own.numbers));
    auto* const moments = static_cast<Vector<Real, 2>*>(arguments.work);
    moments[static_cast<int64_t>(blockIdx.x) * layout.groups + own.group] = {all.mean, all.squares};
  }
}

// Stores a vector of the result in int8.
template <typename T, int kSize>
__device__ __forceinline__ void store_quantized(int8_t* address, const Vector<T, kSize>& result,
                                                float factor) {
  const auto scaled = [&](int i) { return static_cast<float>(result[i]) * factor; };
  if constexpr (kSize % 4 == 0) {
    Vector<uint32_t, kSize / 4> words;
#pragma unroll
    for (int i = 0; i < kSize / 4; ++i) {
      words.word[i] =
          quantize_four(scaled(4 * i), scaled(4 * i + 1), scaled(4 * i + 2), scaled(4 * i + 3));
    }
    *reinterpret_cast<Vector<uint32_t, kSize / 4>*>(address) = words;
  } else {
#pragma unroll
    for (int i = 0; i < kSize; ++i) address[i] = quantize<int8_t>(scaled(i));
  }
}

// Normalises the cells of every part.
template <typename T>
__global__ void __launch_bounds__(kGroupNormThreads, 2)
    group_scale_kernel(const __grid_constant__ NormLayout layout,
                       const __grid_constant__ GroupNormArguments arguments, int most_staged,
                       Accumulate<T> eps, float quantized_factor) {
  using Real = Accumulate<T>;
  constexpr int kSize = 16 / sizeof(T);
  __shared__ ShiftedSums<Real> shared[kGroupNormThreads];
  begin_next_kernel();
  const NormThread<T> own(layout);
  const NormLayout::Level& level = layout.levels[own.level];
  const GroupNormLevel& tensors = arguments.levels[own.level];
  const auto weight = load<T, kSize>(static_cast<const T*>(tensors.weight) + own.column * kSize);
  const auto bias = load<T, kSize>(static_cast<const T*>(tensors.bias) + own.column * kSize);
  const int thread = static_cast<int>(threadIdx.x);
  const int first_part = thread / layout.groups;
  const int merged_group = thread - first_part * layout.groups;
  const int part_numbers = layout.columns_of_group * kSize;                 // of a cell
  const int merging = min(kGroupNormThreads / layout.groups, level.parts);  // threads of a group
  const int64_t first = static_cast<int64_t>(own.image) * layout.parts + level.first_part;
  const auto* const moments =
      static_cast<const Vector<Real, 2>*>(arguments.work) + first * layout.groups;

  const T* const x = static_cast<const T*>(tensors.x);
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 900
  const int staged = 0;  // the block does not begin early, and may have no asynchronous copies
#else
  const int staged = min(most_staged, own.vectors);
#endif
  const auto shared_place = [&](int vector) {
    return dynamic_shared() + vector * kStagedBytes + thread * 16;
  };
  for (int i = 0; i < staged; ++i) {
    const int cell = own.cell(i);
    if (own.has(cell)) copy_async(shared_place(i), own.place(x, cell), true);
  }
  wait_for_last_kernel();
  if (first_part < merging) {
    const Real shift = moments[merged_group][0];
    ShiftedSums<Real> some;
    for (int start = first_part; start < level.parts; start += kNormMoments * merging) {
      Vector<Real, 2> few[kNormMoments]{};
#pragma unroll
      for (int i = 0; i < kNormMoments; ++i) {
        const int part = start + i * merging;
        if (part < level.parts) few[i] = moments[part * layout.groups + merged_group];
      }
#pragma unroll
      for (int i = 0; i < kNormMoments; ++i) {
        const int part = start + i * merging;
        if (part >= level.parts) break;
        const Real sum =
            static_cast<Real>(level.cells_of(part) * part_numbers) * (few[i][0] - shift);
        some.add({sum, few[i][1] + sum * (few[i][0] - shift)});
      }
    }
    shared[thread] = some;
  }
  const Real shift = moments[own.group][0];
  add_parts(shared, merging, layout.groups);

  const Real count = static_cast<Real>(level.cells) * part_numbers;
  const Moments<Real> group(shift, shared[own.group], count);
  const Real scale = 1 / sqrt(group.squares / count + eps);
  Real scales[kSize];
#pragma unroll
  for (int i = 0; i < kSize; ++i) scales[i] = scale * weight[i];
  const auto write = [&](int cell, const Vector<T, kSize>& vector) {
    if (!own.has(cell)) return;
    Vector<T, kSize> result;
#pragma unroll
    for (int j = 0; j < kSize; ++j) {
      result.set(j, (vector[j] - group.mean) * scales[j] + bias[j]);
    }
    const int64_t place = own.result_place(cell);
    store_past_l1(static_cast<T*>(arguments.output) + place, bits<uint4>(result));
    if (arguments.quantized != nullptr) {
      store_quantized(static_cast<int8_t*>(arguments.quantized) + place, result, quantized_factor);
    }
  };
  const int steps = (own.vectors - staged + kNormVectors - 1) / kNormVectors;
  for (int step = steps - 1; step >= 0; --step) {
    const int first = staged + step * kNormVectors;
    Vector<T, kSize> vectors[kNormVectors];
    own.load_some(x, first, vectors);
#pragma unroll
    for (int i = 0; i < kNormVectors; ++i) write(own.cell(first + i), vectors[i]);
  }
  if (staged > 0) wait_for_copies();  // the thread's own, which no other thread reads
#pragma unroll 4
  for (int i = 0; i < staged; ++i) {
    write(own.cell(i), *reinterpret_cast<const Vector<T, kSize>*>(shared_place(i)));
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
  // Vectors of a thread that fit in shared memory beside the first kernel's block. Small parts have
  // as much: with less of it, a map of 96x144 takes 10.7 us in place of 10.2 on an H200.
  int shared_limit = 0, major = 0;
  status = get_attribute(cudaDevAttrMaxSharedMemoryPerBlockOptin, shared_limit);
  if (status == cudaSuccess) status = get_attribute(cudaDevAttrComputeCapabilityMajor, major);
  if (status != cudaSuccess) return status;
  constexpr int kSums = static_cast<int>(sizeof(ShiftedSums<Accumulate<T>>)) * kGroupNormThreads;
  constexpr int kReserved = 1024;  // bytes of each block
  const bool alone = major >= 9 && static_cast<int>(blocks.x) <= multiprocessors;
  const int staged = alone ? (shared_limit - 2 * kSums - kReserved) / kStagedBytes : 0;
  const auto scale = group_scale_kernel<T>;
  const cudaLaunchConfig_t first = launch_config(blocks, kGroupNormThreads, stream);
  cudaLaunchConfig_t second = first;
  status = use_shared_memory(second, scale, staged * kStagedBytes);
  if (status != cudaSuccess) return status;
  status = launch_early(first, group_moments_kernel<T>, layout, arguments);
  if (status != cudaSuccess) return status;
  return launch_early(second, scale, layout, arguments, staged,
                      static_cast<Accumulate<T>>(problem.eps), 1 / problem.next_scale);
}

}  // namespace msda
