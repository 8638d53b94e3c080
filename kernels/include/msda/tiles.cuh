// Tiles: the queries that a block of a group kernel, forward or backward, works on together.
//
// In an encoder the queries are the cells of the levels. A block then takes a rectangle of
// neighbouring cells: what they sample lies close together and is found in L1. The kernel
// recognises an encoder by the levels' sizes, which it reads on the GPU. In any other problem a
// block takes consecutive queries. The order of queries never changes a result.
#pragma once

#include <cstdint>

#include "msda/bilinear.h"
#include "msda/device.cuh"
#include "msda/params.h"

namespace msda {

inline constexpr int kTileWidth = 8;

// A level in shared memory. A level that does not lie inside the value tensor has the size zero.
struct alignas(16) SharedLevel {
  int32_t height;
  int32_t width;
  int32_t start;  // index of the first cell among the cells of all levels
  int32_t unused;

  __device__ __forceinline__ float real_height() const { return static_cast<float>(height); }
  __device__ __forceinline__ float real_width() const { return static_cast<float>(width); }
};

// The same level for clamped samples (group_sample.cuh).
struct alignas(16) ClampedLevel {
  float float_height;
  float float_width;
  int32_t width;
  int32_t start;  // 16-bit values: for rows and columns that count on from kRounderBits

  __device__ __forceinline__ float real_height() const { return float_height; }
  __device__ __forceinline__ float real_width() const { return float_width; }
};

struct SharedLevels {
  SharedLevel level[kMaxLevels];
  ClampedLevel clamped[kMaxLevels];
  int32_t tiles_end[kMaxLevels];  // number of tiles of a level and of those before it
  int32_t num_tiles;
  bool tiled;   // whether the queries are the cells of the levels
  bool narrow;  // whether a level has a single row or column, so that no sample can be clamped.
                // Every ClampedLevel then has the size 2 x 2, which never leaves the value tensor:
                // it has four cells or more.
};

// Reads the levels: one lane of the block's first warp for each level. Ends with a barrier.
// Config::kQueries is the number of queries of a block, Config::kTileHeight the height of a tile.
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
      const int tiles_before = __shfl_up_sync(kFullMask, tiles, distance);
      const int64_t cells_before = __shfl_up_sync(kFullMask, cells, distance);
      if (lane >= distance) {
        tiles += tiles_before;
        cells += cells_before;
      }
    }
    shared.level[lane] = {level.height, level.width, level.start, 0};
    const bool narrow = __any_sync(kFullMask, exists && (level.height < 2 || level.width < 2)) != 0;
    const int32_t clamped_height = narrow ? 2 : level.height;
    const int32_t clamped_width = narrow ? 2 : level.width;
    uint32_t clamped_start = narrow ? 0 : static_cast<uint32_t>(level.start);
    if (sizeof(typename Config::Type) == 2) {
      clamped_start -= kRounderBits * (static_cast<uint32_t>(clamped_width) + 1);
    }
    shared.clamped[lane] = {static_cast<float>(clamped_height), static_cast<float>(clamped_width),
                            clamped_width, static_cast<int32_t>(clamped_start)};
    shared.tiles_end[lane] = tiles;
    // Every query is in one tile when the levels follow each other and have Q cells together.
    const int64_t cells_before = cells - static_cast<int64_t>(level.height) * level.width;
    const bool follows = !exists || (level.valid && level.start == cells_before);
    const bool tiled =
        __all_sync(kFullMask, follows) && __shfl_sync(kFullMask, cells, 31) == problem.num_queries;
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

// The query at `slot` of a tile, 0 <= slot < Config::kQueries, or -1 where the tile has none.
template <typename Config>
__device__ __forceinline__ int query_of_tile(const SharedLevels& shared, int num_queries, int tile,
                                             int slot) {
  if (!shared.tiled) {
    const int query = tile * Config::kQueries + slot;
    return query < num_queries ? query : -1;
  }
  const int lane = threadIdx.x % 32;
  const int level_index = __popc(__ballot_sync(kFullMask, tile >= shared.tiles_end[lane]));
  const SharedLevel level = shared.level[level_index];
  if (level_index > 0) tile -= shared.tiles_end[level_index - 1];
  const int tile_columns = (level.width + kTileWidth - 1) / kTileWidth;
  const int tile_row = divide(tile, tile_columns);
  const int y = tile_row * Config::kTileHeight + slot / kTileWidth;
  const int x = (tile - tile_row * tile_columns) * kTileWidth + slot % kTileWidth;
  const bool inside = y < level.height && x < level.width;
  return inside ? level.start + y * level.width + x : -1;
}

}  // namespace msda
