// Forward of multi-scale deformable attention for few queries (a decoder), where one thread or
// group of lanes for each (n,q,m) would leave most of the GPU idle.
//
// Problem   as forward.cuh.
// Layout    as forward_group.cuh.
// Threads   a warp makes one (n,q,m). kLanes lanes share a point's 16-byte chunks; the 32 / kLanes
//           points of a round are read at once, and kRounds rounds are under way together. Sums,
//           largest logit and total weight are reduced over the warp by shuffles at the end.
// Limits    those of choose.h. Deterministic: no atomics, a fixed order of sums.
#pragma once

#include "msda/forward_group.cuh"

namespace msda {

template <typename T, int kHeadDim_, bool kFused_, bool kWide_, int kRounds_>
struct SpreadConfig {
  using Type = T;
  static constexpr int kHeadDim = kHeadDim_;
  static constexpr bool kFused = kFused_;  // else locations and weights are given
  static constexpr bool kWide = kWide_;    // locations and weights are float, not T
  static constexpr int kRounds = kRounds_;
  static constexpr int kThreads = 128;
  static constexpr int kVec = 16 / sizeof(T);
  static constexpr int kLanes = kHeadDim / kVec;  // of a point
  static constexpr int kPoints = 32 / kLanes;     // of a round
  using Input = std::conditional_t<kWide, float, T>;
  static_assert(kLanes >= 1 && kLanes <= 32 && (kLanes & (kLanes - 1)) == 0);
};

template <typename Config>
__global__ void __launch_bounds__(Config::kThreads)
    forward_spread_kernel(const __grid_constant__ Problem problem,
                          const __grid_constant__ ForwardArguments arguments,
                          const int blocks_per_image) {
  using T = typename Config::Type;
  using Input = typename Config::Input;
  constexpr int kLanes = Config::kLanes;
  constexpr int kRounds = Config::kRounds;
  constexpr int kVec = Config::kVec;

  const int num_heads = static_cast<int>(problem.num_heads);
  const int num_levels = static_cast<int>(problem.num_levels);
  const int num_points = static_cast<int>(problem.total_points);
  const bool boxes = problem.locations == Locations::kReferenceBoxes;
  const int reference_size = boxes ? 4 : 2;
  const int batch = blockIdx.x / blocks_per_image;
  const int item_of_image =
      blockIdx.x % blocks_per_image * (Config::kThreads / 32) + static_cast<int>(threadIdx.x) / 32;
  const int query = item_of_image / num_heads;
  if (query >= static_cast<int>(problem.num_queries)) return;  // the whole warp
  const int head = item_of_image - query * num_heads;
  const int64_t row = batch * problem.num_queries + query;
  const int64_t item = row * num_heads + head;
  const int chunk = threadIdx.x % kLanes;
  const int first_point = threadIdx.x % 32 / kLanes;

  const Input* const locations =
      static_cast<const Input*>(arguments.sampling_locations) + item * num_points * 2;
  const Input* const weights =
      static_cast<const Input*>(arguments.attention_weights) + item * num_points;
  const float* const references =
      static_cast<const float*>(arguments.reference_points) + row * num_levels * reference_size;
  const int32_t cell_bytes = num_heads * (Config::kHeadDim * static_cast<int>(sizeof(T)));
  const char* const value = static_cast<const char*>(arguments.value) +
                            static_cast<int64_t>(batch) * problem.num_cells * cell_bytes +
                            head * (Config::kHeadDim * static_cast<int>(sizeof(T))) + chunk * 16;

  float largest = -INFINITY;
  if constexpr (Config::kFused) {
    for (int point = first_point; point < num_points; point += Config::kPoints) {
      largest = fmaxf(largest, widen(weights[point]));
    }
#pragma unroll
    for (int distance = 16; distance >= kLanes; distance /= 2) {
      largest = fmaxf(largest, __shfl_xor_sync(kWholeWarp, largest, distance));
    }
  }

  float sums[kVec] = {};
  float total_weight = 0;
  int level_index = 0;
  int level_end = problem.points_per_level[0];
  for (int first = first_point; first < num_points; first += kRounds * Config::kPoints) {
    Sample<T> sample[kRounds];
    int32_t columns[kRounds];
#pragma unroll
    for (int r = 0; r < kRounds; ++r) {
      const int point = first + r * Config::kPoints;
      sample[r] = Sample<T>();
      columns[r] = 0;
      if (point < num_points) {
        while (point >= level_end) level_end += problem.points_per_level[++level_index];
        const Level read = read_level(arguments.spatial_shapes, arguments.level_start_index,
                                      problem.int64_shapes, level_index, problem.num_cells);
        const SharedLevel level{read.valid ? read.height : 0, read.valid ? read.width : 0,
                                read.start, 0};
        Raw<Input, 2> location;
        location.load(locations + 2 * point);
        float weight = widen(weights[point]);
        if constexpr (Config::kFused) {
          weight = __expf(weight - largest);
          total_weight += weight;
        }
        const float* const reference = references + level_index * reference_size;
        float2 scale{1.0f, 1.0f};
        if (boxes) {
          const int32_t level_points = problem.points_per_level[level_index];
          scale = {cells_per_offset(reference[2], level_points, static_cast<float>(level.columns)),
                   cells_per_offset(reference[3], level_points, static_cast<float>(level.rows))};
        }
        const auto place = [&](int axis, int32_t size, float per_offset) {
          if constexpr (Config::kFused) {
            return offset_place<T>(reference[axis], location[axis] * per_offset,
                                   static_cast<float>(size));
          } else {
            return given_place<T>(location[axis], static_cast<float>(size));
          }
        };
        sample[r] = make_sample<Config>(place(0, level.columns, scale.x),
                                        place(1, level.rows, scale.y), weight, level);
        columns[r] = level.columns;
      }
    }
    uint4 corner[kRounds][4];
#pragma unroll
    for (int r = 0; r < kRounds; ++r) {
      const int32_t top_left = static_cast<int32_t>(sample[r].place) >> 4;
#pragma unroll
      for (int c = 0; c < 4; ++c) {
        const int64_t cell = top_left + (c < 2 ? 0 : columns[r]) + c % 2;
        corner[r][c] = make_uint4(0, 0, 0, 0);
        if (sample[r].place >> c & 1u) {
          corner[r][c] = __ldg(reinterpret_cast<const uint4*>(value + cell * cell_bytes));
        }
      }
    }
#pragma unroll
    for (int r = 0; r < kRounds; ++r) {
      if constexpr (std::is_same_v<T, float>) {
        blend(sample[r], corner[r], sums);
      } else {
        blend<Config::kFused>(sample[r], corner[r], sums);
      }
    }
  }

#pragma unroll
  for (int distance = 16; distance >= kLanes; distance /= 2) {
#pragma unroll
    for (int i = 0; i < kVec; ++i) sums[i] += __shfl_xor_sync(kWholeWarp, sums[i], distance);
    if constexpr (Config::kFused) {
      total_weight += __shfl_xor_sync(kWholeWarp, total_weight, distance);
    }
  }
  if constexpr (Config::kFused) {
    const float scale = 1.0f / total_weight;
#pragma unroll
    for (int i = 0; i < kVec; ++i) sums[i] *= scale;
  }
  if (first_point == 0) {
    store<T, kVec>(static_cast<T*>(arguments.output) + item * Config::kHeadDim + chunk * kVec,
                   sums);
  }
}

template <typename Config>
cudaError_t launch_forward_spread(const Problem& problem, const ForwardArguments& arguments,
                                  cudaStream_t stream) {
  constexpr int64_t kItems = Config::kThreads / 32;
  const int64_t blocks_per_image = (problem.num_queries * problem.num_heads + kItems - 1) / kItems;
  const int64_t blocks = blocks_per_image * problem.batch_size;
  if (blocks > INT32_MAX) return cudaErrorInvalidConfiguration;
  return launch(forward_spread_kernel<Config>, blocks, Config::kThreads, stream, problem, arguments,
                static_cast<int>(blocks_per_image));
}

}  // namespace msda
