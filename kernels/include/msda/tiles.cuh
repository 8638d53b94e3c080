// Tiles: the queries that a block takes together, shared by the group kernels, forward and
// backward.
//
// Where the queries are the cells of the levels (an encoder) a block takes a rectangle of
// neighbouring cells, so that what it samples lies close together and is found in L1. Nobody tells
// the operator: the kernel sees it in the levels' sizes, which it reads on the GPU anyway.
// Otherwise a block takes consecutive queries. Which query is where never changes a result.
#pragma once

#include <cstdint>

#include "msda/forward.cuh"

namespace msda {

inline constexpr int kTileWidth = 8;

// A large number whose last bit counts ones: what it is added to is rounded to the nearest whole
// number, and the bits of the sum count on from those of kRounder.
inline constexpr float kRounder = 12582912.0f;  // 1.5 * 2^23
inline constexpr uint32_t kRounderBits = 0x4b400000u;

// A level as the threads of a block share it; one that is not valid has the size zero.
struct alignas(16) SharedLevel {
  int32_t rows;
  int32_t columns;
  int32_t start;  // its first cell among all cells
  int32_t unused;

  __device__ __forceinline__ float height() const { return static_cast<float>(rows); }
  __device__ __forceinline__ float width() const { return static_cast<float>(columns); }
};

// The same for inner samples (sample.cuh).
struct alignas(16) InnerLevel {
  float rows;
  float row_length;
  int32_t columns;
  int32_t start;  // for 16-bit values: of a row and a column that count on from kRounderBits

  __device__ __forceinline__ float height() const { return rows; }
  __device__ __forceinline__ float width() const { return row_length; }
};

struct SharedLevels {
  SharedLevel level[kMaxLevels];
  InnerLevel inner[kMaxLevels];
  int32_t tiles_end[kMaxLevels];  // the tiles of a level and of those before it
  int32_t num_tiles;
  bool tiled;   // whether the queries are the cells of the levels
  bool narrow;  // whether a level has fewer than two rows or columns, so that no sample is inner;
                // then every inner level has the size 2 * 2, for there are four cells
};

// Reads the levels: one lane each, of the block's first warp; with a barrier. Config says how many
// queries a block takes (kQueries) and how high a tile is (kTileHeight).
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
    shared.level[lane] = {level.height, level.width, level.start, 0};
    const bool narrow =
        __any_sync(kWholeWarp, exists && (level.height < 2 || level.width < 2)) != 0;
    const int32_t inner_rows = narrow ? 2 : level.height;
    const int32_t inner_columns = narrow ? 2 : level.width;
    uint32_t inner_start = narrow ? 0 : static_cast<uint32_t>(level.start);
    if (sizeof(typename Config::Type) == 2) {
      inner_start -= kRounderBits * (static_cast<uint32_t>(inner_columns) + 1);
    }
    shared.inner[lane] = {static_cast<float>(inner_rows), static_cast<float>(inner_columns),
                          inner_columns, static_cast<int32_t>(inner_start)};
    shared.tiles_end[lane] = tiles;
    // Every query is in one tile when the levels follow each other and have Q cells together.
    const int64_t cells_before = cells - static_cast<int64_t>(level.height) * level.width;
    const bool follows = !exists || (level.valid && level.start == cells_before);
    const bool tiled = __all_sync(kWholeWarp, follows) &&
                       __shfl_sync(kWholeWarp, cells, 31) == problem.num_queries;
    if (lane == 31) {
      shared.tiled = tiled;
      shared.narrow = narrow;
      shared.num_tiles =
          tiled ? tiles
                : static_cast<int>((problem.num_queries + Config::kQueries - 1) / Config::kQueries);
    }
  }
  __syncthreads();
}

// a / b of a >= 0 and b > 0, both below 2^30, in fewer instructions than integers take.
__device__ __forceinline__ int divide(int a, int b) {
  const float reciprocal = __fdividef(1.0f, static_cast<float>(b));
  int quotient = static_cast<int>(static_cast<float>(a) * reciprocal);
  // Off by a few parts in 2^22 so far: what is left is divided once more, and then off by one.
  quotient += static_cast<int>(static_cast<float>(a - quotient * b) * reciprocal);
  const int rest = a - quotient * b;
  return quotient - (rest < 0) + (rest >= b);
}

// The query that a thread has in a tile, or -1; slot counts the queries of the block.
template <typename Config>
__device__ __forceinline__ int query_of_tile(const SharedLevels& shared, int num_queries, int tile,
                                             int slot) {
  if (!shared.tiled) {
    const int query = tile * Config::kQueries + slot;
    return query < num_queries ? query : -1;
  }
  const int lane = threadIdx.x % 32;
  const int level_index = __popc(__ballot_sync(kWholeWarp, tile >= shared.tiles_end[lane]));
  const SharedLevel level = shared.level[level_index];
  if (level_index > 0) tile -= shared.tiles_end[level_index - 1];
  const int tile_columns = (level.columns + kTileWidth - 1) / kTileWidth;
  const int tile_row = divide(tile, tile_columns);
  const int row = tile_row * Config::kTileHeight + slot / kTileWidth;
  const int column = (tile - tile_row * tile_columns) * kTileWidth + slot % kTileWidth;
  const bool inside = row < level.rows && column < level.columns;
  return inside ? level.start + row * level.columns + column : -1;
}

}  // namespace msda
