// Backward of multi-scale deformable attention for the usual head sizes.
//
// Problem   as backward.cuh. What fits here and what goes to another kernel is told by
//           choose_backward.h.
// Layout    as backward.cuh.
// Threads   kLanes neighbouring lanes, a group, work on one (n,q,m); each lane has four channels,
//           which are 16 bytes of grad_value. A lane works out one point at a time by itself
//           (softmax, pixel, corner weights), and hands it to its group through shared memory; then
//           the group takes these points one after the other, every lane its channels of the four
//           corners: it reads value, adds to grad_value, and keeps the products of value and
//           grad_output. The products of four points are summed over the lanes together, each
//           shuffle halving what a lane still has to sum, and end in the lane whose point it is: 16
//           shuffles for four points where one by one would need 36. That lane makes the point's
//           gradients and writes them, next to its neighbours'. The groups of a block have
//           neighbouring (n,q,m), or a tile of queries of one head (tiles.cuh).
// Traffic   per point and D channels: four corners of value read, four corners of grad_value added
//           to by atomics (of four floats at once on compute capability 9.0 and later), which bound
//           the kernel: 16 bytes * D of atomics for every sample, served by L2.
// Shared    24 bytes a thread for points; fused, 4 bytes more for each of the thread's own points:
//           its weight's gradient, until the sum over all points is known.
// Limits    those of choose_backward.h. grad_value is not deterministic, for the order of the
//           atomics varies; the other gradients have one writer and a fixed order of sums.
#pragma once

#include "msda/backward.cuh"
#include "msda/backward_point.cuh"
#include "msda/forward_group.cuh"

namespace msda {

// What a kernel is compiled for.
template <typename T, int kHeadDim_, bool kFused_>
struct BackwardConfig {
  using Type = T;
  static constexpr int kHeadDim = kHeadDim_;
  static constexpr bool kFused = kFused_;  // else locations and weights are given

  static constexpr int kVec = 4;                      // channels of a lane
  static constexpr int kLanes = kHeadDim / kVec;      // of a group; as many points at a time
  static constexpr int kThreads = 256;                // of a block
  static constexpr int kBlocks = 3;                   // that fit on a multiprocessor together
  static constexpr int kGroups = 32 / kLanes;         // of a warp
  static constexpr int kQueries = kThreads / kLanes;  // of a block: all of one head
  static constexpr int kTileHeight = kQueries / kTileWidth;
  // An item's points of one lane, of those whose gradients are kept.
  static constexpr int kKept = kFused ? (kMaxKeptPoints + kLanes - 1) / kLanes : 1;

  static_assert(kLanes >= 4 && kLanes <= 32 && (kLanes & (kLanes - 1)) == 0);
};

// Points on their way from the lane that worked them out to its group. Those that the groups of a
// warp read together lie side by side.
template <int kThreads>
struct SharedSamples {
  float4 weight[kThreads];  // attention times bilinear, of the four corners
  uint2 place[kThreads];    // as Sample has it; columns of the level
};

// What the threads of a block share.
template <typename Config>
struct SharedBackward {
  SharedLevels levels;
  int level_ends[kMaxLevels];  // points of a level and of those before it
  SharedSamples<Config::kThreads> samples;
  // The gradients of a thread's weights.
  float kept[Config::kFused ? Config::kKept : 1][Config::kFused ? Config::kThreads : 1];
};

// (n,q,m) of a thread; query -1: none.
struct ItemOfThread {
  int64_t batch;
  int query;
  int head;
};

template <typename Config>
__device__ __forceinline__ ItemOfThread linear_item(const Problem& problem) {
  const int64_t item =
      static_cast<int64_t>(blockIdx.x) * Config::kQueries + threadIdx.x / Config::kLanes;
  const int64_t row = item / problem.num_heads;
  const int64_t batch = row / problem.num_queries;
  const bool exists = batch < problem.batch_size;
  return {exists ? batch : 0, exists ? static_cast<int>(row - batch * problem.num_queries) : -1,
          static_cast<int>(item - row * problem.num_heads)};
}

// The gradients of one (n,q,m).
template <typename Config>
__device__ __forceinline__ void differentiate_item(const Problem& problem,
                                                   const BackwardArguments& arguments,
                                                   const BackwardWork& work,
                                                   const ItemOfThread& where,
                                                   SharedBackward<Config>& shared) {
  using T = typename Config::Type;
  constexpr int kLanes = Config::kLanes;
  constexpr int kVec = Config::kVec;
  const ForwardArguments& forward = arguments.forward;
  const bool boxes = problem.locations == Locations::kReferenceBoxes;
  const int num_points = static_cast<int>(problem.total_points);
  const int num_heads = static_cast<int>(problem.num_heads);
  const int lane = threadIdx.x % kLanes;        // of the group
  const int group = threadIdx.x % 32 / kLanes;  // of the warp
  const int warp_start = static_cast<int>(threadIdx.x) / 32 * 32;
  const auto slot = [&](int group_lane) {
    return warp_start + group_lane * Config::kGroups + group;
  };

  // Lanes without an item repeat the first, and read and write nothing of value's size.
  const bool writes = where.query >= 0;
  const int64_t row = where.batch * problem.num_queries + (writes ? where.query : 0);
  const int head = where.head;
  const int64_t item = row * num_heads + head;
  const bool wide_locations = problem.location_type != problem.value_type;
  const bool wide_weights = problem.weight_type != problem.value_type;
  const int64_t own_point = item * num_points + lane;
  // Made from the tensors' pointers every time, which are constants: registers are scarce here.
  const auto location_at = [&](int first) {
    return Cursor<T>(forward.sampling_locations, 2 * (own_point + first), wide_locations)
        .template pair<true>();
  };
  const auto weight_at = [&](int first) {
    return Cursor<T>(forward.attention_weights, own_point + first, wide_weights).scalar();
  };
  const auto store_weight = [&](int first, float gradient) {
    Cursor<T, false>(arguments.grad_attention_weights, own_point + first, wide_weights)
        .store(0, gradient);
  };

  const int cell_stride = num_heads * Config::kHeadDim;
  const int value_stride = cell_stride * static_cast<int>(sizeof(T));  // in bytes, as what follows
  const int grad_stride = cell_stride * static_cast<int>(sizeof(float));
  const int64_t first_channel =
      where.batch * problem.num_cells * cell_stride + head * Config::kHeadDim + lane * kVec;
  const char* const value = in_register(static_cast<const char*>(forward.value) +
                                        first_channel * static_cast<int>(sizeof(T)));
  const char* const grad_value = in_register(static_cast<const char*>(arguments.grad_value) +
                                             first_channel * static_cast<int>(sizeof(float)));
  const Vector<T, kVec> grad = load<T, kVec>(static_cast<const T*>(arguments.grad_output) +
                                             item * Config::kHeadDim + lane * kVec);

  Softmax<float> softmax;
  if constexpr (Config::kFused) {
    softmax = make_softmax(Cursor<T>(forward.attention_weights, item * num_points, wide_weights),
                           num_points, lane, kLanes);
  }
  float weighted_sum = 0;  // of the gradients of the lane's weights

  Pair<float> next_location{};
  float next_weight = 0;
  if (lane < num_points) {
    next_location = location_at(0);
    next_weight = weight_at(0);
  }
  int level_index = 0;
  for (int first = 0, round = 0; first < num_points; first += kLanes, ++round) {
    const Pair<float> location = next_location;
    float weight = next_weight;
    const bool owns = first + lane < num_points;
    if (first + kLanes + lane < num_points) {
      next_location = location_at(first + kLanes);
      next_weight = weight_at(first + kLanes);
    }

    // The lane's own point.
    Place x{}, y{};
    Pair<float> cells{};
    Sample<float> own;
    SharedLevel level{};
    if (owns) {
      while (first + lane >= shared.level_ends[level_index]) ++level_index;
      level = shared.levels.level[level_index];
      const float width = static_cast<float>(level.columns);
      const float height = static_cast<float>(level.rows);
      if constexpr (Config::kFused) {
        const float* const reference = static_cast<const float*>(forward.reference_points) +
                                       (row * problem.num_levels + level_index) * (boxes ? 4 : 2);
        const Vector<float, 2> origin = load<float, 2>(reference);
        cells = {1.0f, 1.0f};
        if (boxes) {
          const Vector<float, 2> size = load<float, 2>(reference + 2);
          const int32_t level_points = problem.points_per_level[level_index];
          cells = {cells_per_offset(size[0], level_points, width),
                   cells_per_offset(size[1], level_points, height)};
        }
        weight = softmax(weight);
        x = place_of(at_offset(origin[0], boxes ? location.x * cells.x : location.x, width), width);
        y = place_of(at_offset(origin[1], boxes ? location.y * cells.y : location.y, height),
                     height);
      } else {
        cells = {width, height};
        x = place_of(at_location(location.x, width), width);
        y = place_of(at_location(location.y, height), height);
      }
      own = make_sample<float>(x, y, weight, level);
    }
    const bool reads = owns && writes && (own.place & kEveryCorner) != 0;
    __syncwarp();  // the last points have been read
    shared.samples.weight[slot(lane)] =
        make_float4(own.weight[0], own.weight[1], own.weight[2], own.weight[3]);
    shared.samples.place[slot(lane)] = make_uint2(reads ? own.place : 0u, level.columns);
    __syncwarp();

    // The points of the group, four at a time.
    float own_product[4] = {};
#pragma unroll 1
    for (int four = 0; four < kLanes; four += 4) {
      if (first + four >= num_points)
        break;              // all groups of the warp: the first has the least points
      float product[4][4];  // point, corner
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const uint2 place = shared.samples.place[slot(four + j)];
        const float4 weight_of_corner = shared.samples.weight[slot(four + j)];
        const auto take = [&](auto whole) {
          take_point<T, decltype(whole)::value>(grad, place, weight_of_corner, value, value_stride,
                                                grad_value, grad_stride, product[j]);
        };
        if (__all_sync(kWholeWarp, (place.x & kEveryCorner) == kEveryCorner)) {
          take(std::true_type());
        } else {
          take(std::false_type());
        }
      }
#pragma unroll
      for (int c = 0; c < 4; ++c) {
        const float sum =
            sum_four<kLanes>(product[0][c], product[1][c], product[2][c], product[3][c]);
        if (lane / 4 == four / 4) own_product[c] = sum;
      }
    }

    // What the corners' products say of the lane's own point.
    if (owns && writes) {
#pragma unroll
      for (int c = 0; c < 4; ++c) {
        // Outside nothing is sampled: an infinite grad_output times zero would be NaN.
        if (!has_corner(own.place, c)) own_product[c] = 0;
      }
      const float fx = x.fraction;
      const float fy = y.fraction;
      const float grad_weight = (1 - fy) * ((1 - fx) * own_product[0] + fx * own_product[1]) +
                                fy * ((1 - fx) * own_product[2] + fx * own_product[3]);
      Pair<float> pixel{};
      if (reads) {
        pixel.x = weight * ((1 - fy) * (own_product[1] - own_product[0]) +
                            fy * (own_product[3] - own_product[2]));
        pixel.y = weight * ((1 - fx) * (own_product[2] - own_product[0]) +
                            fx * (own_product[3] - own_product[1]));
      }
      const Cursor<T, false> gradient(arguments.grad_sampling_locations, 2 * (own_point + first),
                                      wide_locations);
      gradient.store(0, reads ? pixel.x * cells.x : 0.0f);
      gradient.store(1, reads ? pixel.y * cells.y : 0.0f);
      if constexpr (Config::kFused) {
        shared.kept[round][threadIdx.x] = grad_weight;
        if (reads) weighted_sum += weight * grad_weight;
        if (work.moved != nullptr) {
          static_cast<float2*>(work.moved)[own_point + first] = make_float2(pixel.x, pixel.y);
        }
      } else {
        store_weight(first, grad_weight);
      }
    }
  }

  if constexpr (Config::kFused) {
    weighted_sum = sum_over_group(weighted_sum, kLanes);
    if (!writes) return;
    for (int first = 0, round = 0; first + lane < num_points; first += kLanes, ++round) {
      const float weight = softmax(weight_at(first));
      store_weight(first, weight * (shared.kept[round][threadIdx.x] - weighted_sum));
    }
  }
}

template <typename Config>
__global__ void __launch_bounds__(Config::kThreads, Config::kBlocks)
    backward_group_kernel(const __grid_constant__ Problem problem,
                          const __grid_constant__ BackwardArguments arguments,
                          const __grid_constant__ BackwardWork work,
                          const int blocks_per_head) {  // 0: no tiles
  __shared__ SharedBackward<Config> shared;
  if (threadIdx.x == 32) {
    int end = 0;
    for (int level = 0; level < static_cast<int>(problem.num_levels); ++level) {
      shared.level_ends[level] = end += problem.points_per_level[level];
    }
  }
  share_levels<Config>(problem, arguments.forward, shared.levels);  // with a barrier

  const bool tiles = blocks_per_head != 0;
  const int num_heads = static_cast<int>(problem.num_heads);
  const int outer = tiles ? blockIdx.x / blocks_per_head : 0;  // (n, head): what shares L2 together
  const int step = tiles ? blocks_per_head : 1;
  const int end = tiles ? shared.levels.num_tiles : 1;
  for (int tile = tiles ? blockIdx.x % blocks_per_head : 0; tile < end; tile += step) {
    ItemOfThread where;
    if (tiles) {
      where.batch = outer / num_heads;
      where.head = outer % num_heads;
      where.query = query_of_tile<Config>(shared.levels, static_cast<int>(problem.num_queries),
                                          tile, static_cast<int>(threadIdx.x) / Config::kLanes);
    } else {
      where = linear_item<Config>(problem);
    }
    differentiate_item<Config>(problem, arguments, work, where, shared);
  }
}

template <typename Config>
cudaError_t launch_backward_group(const Problem& problem, const BackwardArguments& arguments,
                                  const BackwardWork& work, bool tiles, cudaStream_t stream) {
  const int64_t heads = problem.batch_size * problem.num_heads;
  const int64_t blocks_per_head = (problem.num_queries + Config::kQueries - 1) / Config::kQueries;
  const int64_t blocks =
      tiles ? blocks_per_head * heads
            : (problem.num_queries * heads + Config::kQueries - 1) / Config::kQueries;
  if (blocks > INT32_MAX) return cudaErrorInvalidConfiguration;
  return launch(backward_group_kernel<Config>, blocks, Config::kThreads, stream, problem, arguments,
                work, tiles ? static_cast<int>(blocks_per_head) : 0);
}

}  // namespace msda
