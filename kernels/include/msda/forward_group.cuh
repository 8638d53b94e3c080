// Forward of multi-scale deformable attention by groups of lanes, for heads of 16, 32 or 64
// channels: the fast kernels, "many", "medium" and "few" of forward_choice.h.
//
// Problem   as forward_general.cuh. forward_choice.h tells which problems fit.
// Layout    as forward_general.cuh; value and output lie at multiples of 16 bytes.
// Threads   kLanes neighbouring lanes, a group, make one (n,q,m); each holds kChunks times 16 bytes
//           of its channels. A lane makes some of the samples (softmax, cells, corner weights) and
//           hands them to its group by shuffles; every lane reads its part of the four corners
//           (forward_lane.cuh). A block takes a tile of queries (tiles.cuh) and the heads that
//           share a 128-byte line of value.
// Blocks    persistent: as many as the GPU holds, each going from tile to tile, heads last, so that
//           all blocks sample the same heads and find them in L2. Two blocks with neighbouring
//           tiles form a cluster, which keeps them on neighbouring multiprocessors. "few" has one
//           block for each tile instead.
// L1        bounds the kernel. It serves 128 bytes a clock only where eight neighbouring lanes read
//           different banks. Groups sample unrelated cells, but the heads of a line differ in their
//           position in it. Where a lane has two chunks, every second group begins with the other
//           one.
// Edges     Samples are clamped (group_sample.cuh): four cells inside the level are always read.
//           Predicates would cost registers, and a branch would keep nvcc from having the next
//           sample's loads under way. A cell that a sample does not touch has the weight zero. If a
//           sum is NaN, that zero may have met an infinite number, so the warp computes the tile
//           again with masked samples; likewise where a level has a single row or column.
// Sums      float values in float. 16-bit values: the four corners of a sample are blended in
//           packed 16-bit arithmetic, and the samples are added up in float. int8 values: weights
//           are integers of 16 bits, and an instruction multiplies two of them with the bytes of
//           two corners and adds both products to a sum of 32 bits. Half as many bytes come from
//           L1, and the sums are exact.
// Registers sm_90: "many" and "medium" 64 or less (16-bit and int8 values: 1,024 threads a
//           multiprocessor) or 80 (float: 768 threads); some of their forms spill 8 or 16 bytes a
//           thread, but not those of int8 values. "few" 128 or less (512 threads), no spills. 2,192
//           bytes of shared memory a block.
// Limits    Deterministic: no atomics, a fixed order of sums.
#pragma once

#include <algorithm>

#include "msda/cuda_launch.cuh"
#include "msda/forward_lane.cuh"

namespace msda {

inline constexpr uint32_t kNoItem = UINT32_MAX;

// A tile, for the heads of one line of one image. Returns true, and writes nothing, where clamped
// samples do not suffice: the caller tries again with masked ones.
template <typename Config, bool kMasked>
__device__ __forceinline__ bool forward_tile(const Problem& problem,
                                             const ForwardArguments& arguments,
                                             const SharedLevels& shared, int tile, int batch,
                                             int head_group) {
  using T = typename Config::Type;
  constexpr int kLanes = Config::kLanes;
  constexpr int kChunks = Config::kChunks;
  constexpr int kOutputBytes = Config::spec.head_dim * sizeof(T);  // of a head
  const int num_heads =
      Config::spec.num_heads > 0 ? Config::spec.num_heads : static_cast<int>(problem.num_heads);
  const int head_groups = (num_heads + Config::kHeads - 1) / Config::kHeads;
  const int32_t cell_bytes = num_heads * Config::kHeadBytes;
  const int item_of_block = threadIdx.x / kLanes;
  // Groups of eight lanes begin with different chunks, so that the lanes' banks differ.
  const int rotation = (threadIdx.x % 8) / (kLanes * Config::kHeads) % kChunks;

  if (head_group >= head_groups) {
    batch = divide(head_group, head_groups);
    head_group -= batch * head_groups;
  }
  const int head = head_group * Config::kHeads + item_of_block % Config::kHeads;
  const int query = query_of_tile<Config>(shared, static_cast<int>(problem.num_queries), tile,
                                          item_of_block / Config::kHeads);
  const bool writes = query >= 0 && head < num_heads;
  // Lanes without work repeat the first query and head, because shuffles need every lane.
  const uint32_t query_index =
      static_cast<uint32_t>(batch * problem.num_queries) + (writes ? query : 0);
  const uint32_t item = query_index * num_heads + (writes ? head : 0);
  const uint32_t written = opaque(writes ? item : kNoItem);
  const char* value[kChunks];
#pragma unroll
  for (int k = 0; k < kChunks; ++k) {
    value[k] =
        opaque(static_cast<const char*>(arguments.value) + batch * problem.num_cells * cell_bytes +
               (head < num_heads ? head : 0) * Config::kHeadBytes +
               ((k ^ rotation) * kLanes + threadIdx.x % kLanes) * Config::kChunkBytes);
  }
  ForwardLane<Config, kMasked> lane(problem, arguments, shared, item, query_index, value,
                                    cell_bytes);
  lane.add();
  if (!kMasked && __any_sync(kFullMask, lane.has_nan() || shared.narrow)) return true;
  T* const output = reinterpret_cast<T*>(static_cast<char*>(arguments.output) +
                                         static_cast<uint64_t>(written) * kOutputBytes);
  lane.finish(written == kNoItem ? nullptr : output, rotation);
  return false;
}

template <typename Config>
__global__ void __launch_bounds__(Config::spec.threads, Config::spec.blocks)
    forward_group_kernel(const __grid_constant__ Problem problem,
                         const __grid_constant__ ForwardArguments arguments) {
  __shared__ SharedLevels shared;
  share_levels<Config>(problem, arguments, shared);

  const auto run = [&](int tile, int batch, int head_group) {
    if (forward_tile<Config, Config::kMaskedOnly>(problem, arguments, shared, tile, batch,
                                                  head_group)) {
      forward_tile<Config, true>(problem, arguments, shared, tile, batch, head_group);
    }
  };
  if constexpr (Config::spec.persistent) {
    const int num_heads =
        Config::spec.num_heads > 0 ? Config::spec.num_heads : static_cast<int>(problem.num_heads);
    const int head_groups = (num_heads + Config::kHeads - 1) / Config::kHeads;
    const int outer_end = head_groups * static_cast<int>(problem.batch_size);
    int outer = 0;  // head groups, then images
    for (int tile = blockIdx.x;; tile += gridDim.x) {
      for (; tile >= no_hoist(shared.num_tiles); tile -= no_hoist(shared.num_tiles)) ++outer;
      if (outer >= outer_end) break;
      run(tile, 0, outer);
    }
  } else {
    for (int tile = blockIdx.x; tile < shared.num_tiles; tile += gridDim.x) {
      run(tile, blockIdx.z, blockIdx.y);
    }
  }
}

template <typename Config>
cudaError_t launch_forward_group(const Problem& problem, const ForwardArguments& arguments,
                                 cudaStream_t stream) {
  const int64_t tiles = (problem.num_queries + Config::kQueries - 1) / Config::kQueries;
  const int64_t head_groups = (problem.num_heads + Config::kHeads - 1) / Config::kHeads;
  if (!Config::spec.persistent) {
    const dim3 blocks(static_cast<unsigned>(tiles), static_cast<unsigned>(head_groups),
                      static_cast<unsigned>(problem.batch_size));
    return launch(forward_group_kernel<Config>, blocks, Config::spec.threads, stream, problem,
                  arguments);
  }
  int multiprocessors = 0;
  const cudaError_t status = get_attribute(cudaDevAttrMultiProcessorCount, multiprocessors);
  if (status != cudaSuccess) return status;
  const int64_t blocks = std::min<int64_t>(tiles * head_groups * problem.batch_size,
                                           int64_t{Config::spec.blocks} * multiprocessors);
  return launch_pairs(forward_group_kernel<Config>, blocks, Config::spec.threads, stream, problem,
                      arguments);
}

}  // namespace msda
