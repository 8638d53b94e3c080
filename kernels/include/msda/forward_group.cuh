// Forward of multi-scale deformable attention for the usual head sizes and many queries.
//
// Problem   as forward.cuh. What fits here and what goes to another kernel is told by choose.h.
// Layout    as forward.cuh; value and out lie at multiples of 16 bytes, and so does every head.
// Threads   kLanes neighbouring lanes make one (n,q,m), each of them kChunks times 16 bytes of its
//           channels. A block has kHeads neighbouring heads, as many as share a 128-byte line of
//           value, of kQueries queries: consecutive ones, or, where the queries are the cells of
//           the levels (an encoder), a tile of neighbouring cells, so that what the block samples
//           lies close together and is found in L1.
//           A lane works out kOwn points of a level (softmax, cell, corner weights) and hands them
//           to the other lanes of its group by shuffles; then every lane reads its part of the four
//           corners. The inputs of the next points are loaded meanwhile.
// L1        serves 128 bytes a clock only when what eight neighbouring lanes read lies in different
//           banks. Their (n,q,m) sample unrelated cells; but the heads of a line differ in their
//           place in it, and the queries take turns: each begins with another chunk.
// Sums      float values in float. Of 16-bit values the four corners of a sample are blended in
//           packed 16-bit arithmetic, and the samples added up in float.
// Limits    those of choose.h. Deterministic: no atomics, a fixed order of sums.
#pragma once

#include "msda/forward.cuh"
#include "msda/launch_kernel.cuh"
#include "msda/packed.cuh"

namespace msda {

inline constexpr int kTileWidth = 8;

// What a kernel is compiled for.
template <typename T, int kHeadDim_, bool kFused_, bool kWide_, int kNumHeads_, int kPoints_,
          int kLanes_, int kThreads_, int kBlocks_>
struct GroupConfig {
  using Type = T;
  static constexpr int kHeadDim = kHeadDim_;
  static constexpr bool kFused = kFused_;       // else locations and weights are given
  static constexpr bool kWide = kWide_;         // locations and weights are float, not T
  static constexpr int kNumHeads = kNumHeads_;  // M; 0: any, with slower addresses
  static constexpr int kPoints = kPoints_;      // of every level; 0: any, ragged or not
  static constexpr int kLanes = kLanes_;        // of a group
  static constexpr int kThreads = kThreads_;    // of a block
  static constexpr int kBlocks = kBlocks_;      // that fit on a multiprocessor together

  static constexpr int kVec = 16 / sizeof(T);  // channels of a chunk
  static constexpr int kChunks = kHeadDim / kVec / kLanes;
  static constexpr int kHeadBytes = kHeadDim * sizeof(T);
  static constexpr int kHeads = kHeadBytes < 128 ? 128 / kHeadBytes : 1;  // of a block
  static constexpr int kQueries = kThreads / kLanes / kHeads;             // of a block
  static constexpr int kTileHeight = kQueries / kTileWidth;
  static constexpr int kOwn = kPoints == 0 ? 1 : kPoints / kLanes;  // points of a lane at a time
  static constexpr int kRound = kOwn * kLanes;                      // points of a group at a time
  using Input = std::conditional_t<kWide, float, T>;                // of locations and weights

  static_assert(kChunks >= 1 && (kChunks & (kChunks - 1)) == 0);
  static_assert(kTileHeight >= 1 && kQueries == kTileHeight * kTileWidth);
  static_assert(kPoints == 0 || kPoints % kLanes == 0);
};

// A level as the threads of a block share it; one that is not valid has the size zero.
struct alignas(16) SharedLevel {
  int32_t rows;
  int32_t columns;
  int32_t start;
  int32_t tiles;  // of this level and those before it
};

struct SharedLevels {
  SharedLevel level[kMaxLevels];
  int32_t num_tiles;
  bool tiled;  // whether the queries are the cells of the levels
};

// Keeps the compiler from taking a pointer apart again, into what is the same for all lanes and
// what is not, which costs two additions for every address made from it.
__device__ __forceinline__ const char* in_register(const char* pointer) {
#if defined(__CUDA_ARCH__)
  asm("" : "+l"(pointer));
#endif
  return pointer;
}

// Reads the levels: one lane each, of the block's first warp.
template <typename Config>
__device__ __forceinline__ void share_levels(const Problem& problem,
                                             const ForwardArguments& arguments,
                                             SharedLevels& shared) {
  static_assert(kMaxLevels == 32);
  if (threadIdx.x < 32) {
    const int lane = threadIdx.x;
    const bool exists = lane < static_cast<int>(problem.num_levels);
    Level level{0, 0, 0, true};
    if (exists) {
      level = read_level(arguments.spatial_shapes, arguments.level_start_index,
                         problem.int64_shapes, lane, problem.num_cells);
      if (!level.valid) level.height = level.width = 0;
    }
    const int tile_rows = (level.height + Config::kTileHeight - 1) / Config::kTileHeight;
    const int tile_columns = (level.width + kTileWidth - 1) / kTileWidth;
    int tiles = tile_rows * tile_columns;
    int64_t cells = static_cast<int64_t>(level.height) * level.width;
#pragma unroll
    for (int distance = 1; distance < 32; distance *= 2) {
      const int tiles_before = __shfl_up_sync(kWholeWarp, tiles, distance);
      const int64_t cells_before = __shfl_up_sync(kWholeWarp, cells, distance);
      if (lane >= distance) {
        tiles += tiles_before;
        cells += cells_before;
      }
    }
    shared.level[lane] = {level.height, level.width, level.start, tiles};
    // Every query is in one tile when the levels follow each other and have Q cells together.
    const int64_t cells_before = cells - static_cast<int64_t>(level.height) * level.width;
    const bool follows = !exists || (level.valid && level.start == cells_before);
    const bool tiled = __all_sync(kWholeWarp, follows) &&
                       __shfl_sync(kWholeWarp, cells, 31) == problem.num_queries;
    if (lane == 31) {
      shared.tiled = tiled;
      shared.num_tiles =
          tiled ? tiles
                : static_cast<int>((problem.num_queries + Config::kQueries - 1) / Config::kQueries);
    }
  }
  __syncthreads();
}

// The query that a thread has in a tile, or -1.
template <typename Config>
__device__ __forceinline__ int query_of_tile(const SharedLevels& shared, int num_queries, int tile,
                                             int slot) {
  if (!shared.tiled) {
    const int query = tile * Config::kQueries + slot;
    return query < num_queries ? query : -1;
  }
  const int lane = threadIdx.x % 32;
  const int level_index = __popc(__ballot_sync(kWholeWarp, tile >= shared.level[lane].tiles));
  const SharedLevel level = shared.level[level_index];
  if (level_index > 0) tile -= shared.level[level_index - 1].tiles;
  const int tile_columns = (level.columns + kTileWidth - 1) / kTileWidth;
  const int row = tile / tile_columns * Config::kTileHeight + slot / kTileWidth;
  const int column = tile % tile_columns * kTileWidth + slot % kTileWidth;
  const bool inside = row < level.rows && column < level.columns;
  return inside ? level.start + row * level.columns + column : -1;
}

// kCount numbers of one type as they lie in memory, loaded in words as wide as their alignment
// allows.
template <typename T, int kCount>
struct Raw {
  static constexpr int kBytes = kCount * sizeof(T);
  alignas(kBytes < 16 ? kBytes : 16) T number[kCount];

  // The address is a multiple of kBytes, or of 16.
  __device__ __forceinline__ void load(const T* address) {
    using Word =
        std::conditional_t<kBytes % 16 == 0, uint4,
                           std::conditional_t<kBytes == 8, uint2,
                                              std::conditional_t<kBytes == 4, uint32_t, uint16_t>>>;
    static_assert(kBytes % sizeof(Word) == 0);
#pragma unroll
    for (int i = 0; i < kBytes / static_cast<int>(sizeof(Word)); ++i) {
      const Word word = __ldg(reinterpret_cast<const Word*>(address) + i);
      memcpy(reinterpret_cast<char*>(number) + i * sizeof(Word), &word, sizeof(Word));
    }
  }
  __device__ __forceinline__ float operator[](int i) const { return widen(number[i]); }
};

// What is wanted of one sample: the top left cell among all cells times 16 plus a bit for each
// corner that is inside, and the weights of the corners.
template <typename T>
struct Sample {
  uint32_t place = 0;
  uint32_t top = 0;  // two weights of type T, the left one in the low half
  uint32_t bottom = 0;
  float attention = 0;  // of locations given; else the corners' weights contain it
};
template <>
struct Sample<float> {
  uint32_t place = 0;
  float weight[4] = {};
};

// A pixel coordinate's cell and fraction. One that is far outside or not finite becomes one whose
// cells are both outside, so that it reads nothing, and has a finite fraction, so that it adds no
// NaN.
struct Place {
  int32_t cell;
  float fraction;
};

__device__ __forceinline__ Place place_of(float pixel, float size) {
  const float within = fminf(fmaxf(pixel, -2.0f), size);  // NaN becomes -2
  const float cell = floorf(within);
  return {static_cast<int32_t>(cell), within - cell};
}

__device__ __forceinline__ Place place_of(Coordinate<float> coordinate, float size) {
  const bool touching = touches(coordinate, size);
  return {touching ? static_cast<int32_t>(coordinate.cell) : -2,
          touching ? coordinate.fraction : 0.0f};
}

// 16-bit values are not worth the exact remainders of sampling.h.
template <typename T>
__device__ __forceinline__ Place given_place(float location, float size) {
  if constexpr (std::is_same_v<T, float>) {
    return place_of(at_location(location, size), size);
  } else {
    return place_of(fmaf(location, size, -0.5f), size);
  }
}
template <typename T>
__device__ __forceinline__ Place offset_place(float reference, float offset, float size) {
  if constexpr (std::is_same_v<T, float>) {
    return place_of(at_offset(reference, offset, size), size);
  } else {
    return place_of(fmaf(reference, size, offset - 0.5f), size);
  }
}

template <typename Config>
__device__ __forceinline__ Sample<typename Config::Type> make_sample(Place x, Place y, float weight,
                                                                     const SharedLevel& level) {
  using T = typename Config::Type;
  Sample<T> sample;
  const auto inside = [](int32_t cell, int32_t size) {
    return static_cast<uint32_t>(cell) < static_cast<uint32_t>(size);
  };
  const uint32_t left = inside(x.cell, level.columns) ? 1u | 4u : 0u;
  const uint32_t right = inside(x.cell + 1, level.columns) ? 2u | 8u : 0u;
  const uint32_t top = inside(y.cell, level.rows) ? 1u | 2u : 0u;
  const uint32_t bottom = inside(y.cell + 1, level.rows) ? 4u | 8u : 0u;
  const int32_t cell = level.start + y.cell * level.columns + x.cell;
  sample.place = static_cast<uint32_t>(cell) * 16u + ((left | right) & (top | bottom));
  if constexpr (std::is_same_v<T, float>) {
    const float below = weight * y.fraction;
    const float above = weight - below;
    sample.weight[1] = above * x.fraction;
    sample.weight[0] = above - sample.weight[1];
    sample.weight[3] = below * x.fraction;
    sample.weight[2] = below - sample.weight[3];
  } else {
    // A softmax's weights are at most 1 and go into the corners' weights; any others could leave
    // the range of 16 bits there.
    const float factor = Config::kFused ? weight : 1.0f;
    const float below = factor * y.fraction;
    const float above = factor - below;
    const float above_right = above * x.fraction;
    const float below_right = below * x.fraction;
    sample.top = pack<T>(above - above_right, above_right);
    sample.bottom = pack<T>(below - below_right, below_right);
    if constexpr (!Config::kFused) sample.attention = weight;
  }
  return sample;
}

// The sample that lane `source` of the group holds.
template <typename Config>
__device__ __forceinline__ Sample<typename Config::Type> from_lane(
    const Sample<typename Config::Type>& own, int source) {
  constexpr int kWidth = Config::kLanes;
  if constexpr (kWidth == 1) {
    return own;
  } else {
    Sample<typename Config::Type> sample;
    sample.place = __shfl_sync(kWholeWarp, own.place, source, kWidth);
    if constexpr (std::is_same_v<typename Config::Type, float>) {
#pragma unroll
      for (int c = 0; c < 4; ++c) {
        sample.weight[c] = __shfl_sync(kWholeWarp, own.weight[c], source, kWidth);
      }
    } else {
      sample.top = __shfl_sync(kWholeWarp, own.top, source, kWidth);
      sample.bottom = __shfl_sync(kWholeWarp, own.bottom, source, kWidth);
      if constexpr (!Config::kFused) {
        sample.attention = __shfl_sync(kWholeWarp, own.attention, source, kWidth);
      }
    }
    return sample;
  }
}

// 16 bytes of four corners, blended and added to the sums of their channels.
__device__ __forceinline__ void blend(const Sample<float>& sample, const uint4 (&corner)[4],
                                      float (&sums)[4]) {
#pragma unroll
  for (int c = 0; c < 4; ++c) {
    sums[0] += sample.weight[c] * __uint_as_float(corner[c].x);
    sums[1] += sample.weight[c] * __uint_as_float(corner[c].y);
    sums[2] += sample.weight[c] * __uint_as_float(corner[c].z);
    sums[3] += sample.weight[c] * __uint_as_float(corner[c].w);
  }
}

template <bool kFused, typename T>
__device__ __forceinline__ void blend(const Sample<T>& sample, const uint4 (&corner)[4],
                                      float (&sums)[8]) {
  const auto top = bits<Packed<T>>(sample.top);
  const auto bottom = bits<Packed<T>>(sample.bottom);
  const Packed<T> weight[4] = {low_twice(top), high_twice(top), low_twice(bottom),
                               high_twice(bottom)};
  const auto word = [&](int c, int i) {
    return bits<Packed<T>>(i == 0 ? corner[c].x
                                  : (i == 1 ? corner[c].y : (i == 2 ? corner[c].z : corner[c].w)));
  };
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    Packed<T> pair = __hmul2(weight[0], word(0, i));
#pragma unroll
    for (int c = 1; c < 4; ++c) pair = __hfma2(weight[c], word(c, i), pair);
    const float2 both = unpack(pair);
    if constexpr (kFused) {
      sums[2 * i] += both.x;
      sums[2 * i + 1] += both.y;
    } else {
      sums[2 * i] += sample.attention * both.x;
      sums[2 * i + 1] += sample.attention * both.y;
    }
  }
}

template <typename Config>
__global__ void __launch_bounds__(Config::kThreads, Config::kBlocks)
    forward_group_kernel(const __grid_constant__ Problem problem,
                         const __grid_constant__ ForwardArguments arguments,
                         const int blocks_per_head_group) {
  using T = typename Config::Type;
  using Input = typename Config::Input;
  constexpr int kLanes = Config::kLanes;
  constexpr int kOwn = Config::kOwn;
  constexpr int kChunks = Config::kChunks;
  constexpr int kVec = Config::kVec;

  __shared__ SharedLevels shared;
  share_levels<Config>(problem, arguments, shared);

  const int lane_of_group = threadIdx.x % kLanes;
  const int item_of_block = threadIdx.x / kLanes;
  const int slot = item_of_block / Config::kHeads;  // among the block's queries
  const int num_heads =
      Config::kNumHeads > 0 ? Config::kNumHeads : static_cast<int>(problem.num_heads);
  const int head_groups = (num_heads + Config::kHeads - 1) / Config::kHeads;
  const int outer = blockIdx.x / blocks_per_head_group;  // (n, heads): what shares L2 runs together
  const int64_t batch = outer / head_groups;
  const int head = outer % head_groups * Config::kHeads + item_of_block % Config::kHeads;
  const int num_levels = static_cast<int>(problem.num_levels);
  const int num_points = static_cast<int>(problem.total_points);
  const bool boxes = problem.locations == Locations::kReferenceBoxes;
  const int reference_size = boxes ? 4 : 2;

  const int32_t cell_bytes = num_heads * Config::kHeadBytes;
  // The queries of eight lanes begin with different chunks, so that the lanes' banks differ.
  const int turn = (threadIdx.x % 8) / (kLanes * Config::kHeads) % kChunks;
  // Where the lane's part of the first cell's chunks lies.
  const char* chunk_value[kChunks];
#pragma unroll
  for (int k = 0; k < kChunks; ++k) {
    chunk_value[k] = in_register(static_cast<const char*>(arguments.value) +
                                 batch * problem.num_cells * cell_bytes +
                                 (head < num_heads ? head : 0) * Config::kHeadBytes +
                                 ((k ^ turn) * kLanes + lane_of_group) * 16);
  }

  for (int tile = blockIdx.x % blocks_per_head_group; tile < shared.num_tiles;
       tile += blocks_per_head_group) {
    const int query =
        query_of_tile<Config>(shared, static_cast<int>(problem.num_queries), tile, slot);
    const bool writes = query >= 0 && head < num_heads;
    // Lanes without work repeat the first query and head: the shuffles need every lane.
    const int64_t row = batch * problem.num_queries + (writes ? query : 0);
    const int64_t item = row * num_heads + (writes ? head : 0);
    // Of the lane's next points.
    const Input* next_locations = static_cast<const Input*>(arguments.sampling_locations) +
                                  (item * num_points + lane_of_group * kOwn) * 2;
    const Input* next_weights = static_cast<const Input*>(arguments.attention_weights) +
                                item * num_points + lane_of_group * kOwn;
    const float* next_references =
        static_cast<const float*>(arguments.reference_points) + row * num_levels * reference_size;

    Raw<Input, 2 * kOwn> next_location;
    Raw<Input, kOwn> next_weight;
    Raw<float, 2> next_reference{};
    Raw<float, 2> next_box_size{};
    if (Config::kPoints > 0 || lane_of_group < num_points) {
      next_location.load(next_locations);
      next_weight.load(next_weights);
    }
    const auto load_next_reference = [&] {
      next_reference.load(next_references);
      if (boxes) next_box_size.load(next_references + 2);
      next_references += reference_size;
    };
    if constexpr (Config::kFused) load_next_reference();

    float largest = -INFINITY;
    if constexpr (Config::kFused) {
#pragma unroll 4
      for (int i = lane_of_group * kOwn; i < num_points; i += Config::kRound) {
        Raw<Input, kOwn> logit;
        logit.load(next_weights + (i - lane_of_group * kOwn));
#pragma unroll
        for (int k = 0; k < kOwn; ++k) largest = fmaxf(largest, logit[k]);
      }
#pragma unroll
      for (int distance = kLanes / 2; distance > 0; distance /= 2) {
        largest = fmaxf(largest, __shfl_xor_sync(kWholeWarp, largest, distance));
      }
    }

    float sums[kChunks][kVec] = {};
    float total_weight = 0;
    int level_end = 0;
    for (int level_index = 0; level_index < num_levels; ++level_index) {
      const SharedLevel level = shared.level[level_index];
      const float width = static_cast<float>(level.columns);
      const float height = static_cast<float>(level.rows);
      const int level_points =
          Config::kPoints > 0 ? Config::kPoints : problem.points_per_level[level_index];
      const int level_start = level_end;
      level_end += level_points;

      const Raw<float, 2> reference = next_reference;
      float2 cells = make_float2(1.0f, 1.0f);  // of an offset of one
      if constexpr (Config::kFused) {
        if (boxes) {
          cells = make_float2(cells_per_offset(next_box_size[0], level_points, width),
                              cells_per_offset(next_box_size[1], level_points, height));
        }
        if (level_index + 1 < num_levels) load_next_reference();
      }

      for (int first = 0; first < level_points; first += Config::kRound) {
        const Raw<Input, 2 * kOwn> location = next_location;
        const Raw<Input, kOwn> raw_weight = next_weight;
        const bool owns = Config::kPoints > 0 || first + lane_of_group < level_points;
        // A level's last round may be short; the next level begins with the first lane again.
        const int step =
            Config::kPoints > 0 ? Config::kRound : min(Config::kRound, level_points - first);
        next_locations += 2 * step;
        next_weights += step;
        if (Config::kPoints > 0 ? level_index + 1 < num_levels
                                : level_start + first + step + lane_of_group < num_points) {
          next_location.load(next_locations);
          next_weight.load(next_weights);
        }

        Sample<T> own[kOwn];
#pragma unroll
        for (int k = 0; k < kOwn; ++k) {
          float weight = raw_weight[k];
          Place x, y;
          if constexpr (Config::kFused) {
            weight = __expf(weight - largest);
            if (owns) total_weight += weight;
            x = offset_place<T>(reference[0], location[2 * k] * cells.x, width);
            y = offset_place<T>(reference[1], location[2 * k + 1] * cells.y, height);
          } else {
            x = given_place<T>(location[2 * k], width);
            y = given_place<T>(location[2 * k + 1], height);
          }
          own[k] = make_sample<Config>(x, y, weight, level);
          if (!owns) own[k].place = 0;
        }

#pragma unroll
        for (int j = 0; j < Config::kRound; ++j) {
          if (Config::kPoints == 0 && first + j >= level_points) break;
          const Sample<T> sample = from_lane<Config>(own[j % kOwn], j / kOwn);
          const int32_t top_left = static_cast<int32_t>(sample.place) >> 4;
          const int32_t bottom_left = top_left + level.columns;
          const auto address = [&](int k, int c) {
            const int64_t cell = c < 2 ? top_left : bottom_left;
            return reinterpret_cast<const uint4*>(chunk_value[k] + cell * cell_bytes +
                                                  (c % 2) * cell_bytes);
          };
          uint4 corner[kChunks][4];
          if (__all_sync(kWholeWarp, (sample.place & 15u) == 15u)) {
#pragma unroll
            for (int k = 0; k < kChunks; ++k) {
#pragma unroll
              for (int c = 0; c < 4; ++c) corner[k][c] = __ldg(address(k, c));
            }
          } else {
#pragma unroll
            for (int k = 0; k < kChunks; ++k) {
#pragma unroll
              for (int c = 0; c < 4; ++c) {
                corner[k][c] = make_uint4(0, 0, 0, 0);
                if (sample.place >> c & 1u) corner[k][c] = __ldg(address(k, c));
              }
            }
          }
#pragma unroll
          for (int k = 0; k < kChunks; ++k) {
            if constexpr (std::is_same_v<T, float>) {
              blend(sample, corner[k], sums[k]);
            } else {
              blend<Config::kFused>(sample, corner[k], sums[k]);
            }
          }
        }
      }
    }

    float scale = 1.0f;
    if constexpr (Config::kFused) {
#pragma unroll
      for (int distance = kLanes / 2; distance > 0; distance /= 2) {
        total_weight += __shfl_xor_sync(kWholeWarp, total_weight, distance);
      }
      scale = 1.0f / total_weight;
    }
    if (!writes) continue;
    T* const output = static_cast<T*>(arguments.output) + item * Config::kHeadDim;
#pragma unroll
    for (int k = 0; k < kChunks; ++k) {
#pragma unroll
      for (int i = 0; i < kVec; ++i) sums[k][i] *= scale;
      store<T, kVec>(output + ((k ^ turn) * kLanes + lane_of_group) * kVec, sums[k]);
    }
  }
}

template <typename Config>
cudaError_t launch_forward_group(const Problem& problem, const ForwardArguments& arguments,
                                 cudaStream_t stream) {
  const int64_t blocks_per_head_group =
      (problem.num_queries + Config::kQueries - 1) / Config::kQueries;
  const int64_t head_groups = (problem.num_heads + Config::kHeads - 1) / Config::kHeads;
  const int64_t blocks = blocks_per_head_group * head_groups * problem.batch_size;
  if (blocks > INT32_MAX) return cudaErrorInvalidConfiguration;
  return launch(forward_group_kernel<Config>, blocks, Config::kThreads, stream, problem, arguments,
                static_cast<int>(blocks_per_head_group));
}

}  // namespace msda
