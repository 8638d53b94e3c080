// Backward of multi-scale deformable attention by groups of lanes, for heads of 16, 32 or 64
// channels: "group" and "tile" of backward_choice.h.
//
// Problem   as backward_general.cuh. backward_choice.h tells which problems fit.
// Layout    as backward_general.cuh.
// Threads   kLanes neighbouring lanes, a group, work on one (n,q,m); each lane has four channels,
//           which are 16 bytes of grad_value (backward_lane.cuh). The groups of a block have
//           neighbouring (n,q,m), or, in "tile", a tile of queries of one head (tiles.cuh).
// Traffic   per point and D channels: four corners of value read, four corners of grad_value added
//           to by atomics (of four floats at once on compute capability 9.0 and later). The atomics
//           bound the kernel: 16 bytes * D for every sample, served by L2.
// Registers sm_90: 80 or less, no spills; 256 threads a block, 3 blocks a multiprocessor. Shared
// memory of a block: 8,480 bytes, fused 12,560
//           (D = 64) to 24,848 (D = 16).
// Limits    grad_value is not deterministic, because the order of the atomics varies. The other
//           gradients have one writer and a fixed order of sums.
#pragma once

#include "msda/backward_lane.cuh"
#include "msda/cuda_launch.cuh"

namespace msda {

template <typename Config>
__device__ __forceinline__ ItemOfThread linear_item(const Problem& problem) {
  const int64_t item =
      static_cast<int64_t>(blockIdx.x) * Config::kQueries + threadIdx.x / Config::kLanes;
  const int64_t query_index = item / problem.num_heads;
  const int64_t batch = query_index / problem.num_queries;
  const bool exists = batch < problem.batch_size;
  return {exists ? batch : 0,
          exists ? static_cast<int>(query_index - batch * problem.num_queries) : -1,
          static_cast<int>(item - query_index * problem.num_heads)};
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
  const int outer = tiles ? blockIdx.x / blocks_per_head : 0;  // (n, m): blocks that share L2
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
    BackwardLane<Config>(problem, arguments, work, where, shared).run();
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
  return launch_linear(backward_group_kernel<Config>, blocks * Config::kThreads, Config::kThreads,
                       stream, problem, arguments, work,
                       tiles ? static_cast<int>(blocks_per_head) : 0);
}

}  // namespace msda
