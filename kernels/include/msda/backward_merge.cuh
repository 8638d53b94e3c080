// Adding up in shared memory what the points of a block add to the same cell, so that grad_value
// has one atomic for it.
//
// Problem   neighbouring queries sample the same cells: of 32 queries in a tile of 8 x 4, five
//           points in the mean add to each cell that they touch, where locations lie near their
//           reference points (the published initial offsets and 1.5 cells of noise; uniform
//           locations: 1.2).
//           All channels of a point have the same corner weights: so weights are sorted by cell,
//           and then each cell has one sum over them of weight * grad_output.
// Threads   every thread brings the four corners of one point. A hash table in shared memory gives
//           each cell a slot, and each of the slot's corners a rank; a sum over the slots before
//           gives the slot's place among the sorted corners. Then each group of lanes, a channel
//           vector each, takes cells in turn. Six barriers for a round of points.
// Limits    one (n, head) a block. The order of a cell's corners is that of atomics.
#pragma once

#include "msda/backward_point.cuh"
#include "msda/forward_group.cuh"

namespace msda {

// A corner: its weight, attention times bilinear, and the thread of its item's first channels.
struct MergedCorner {
  float weight;
  int32_t first_thread;
};

template <int kThreads>
struct SharedMerge {
  static constexpr int kSlots = 8 * kThreads;  // twice the corners
  static constexpr int kOwn = kSlots / kThreads;
  int32_t cell[kSlots];         // of the slot, or -1
  int32_t begin[kSlots + 1];    // number of the slot's corners; then where they begin
  uint16_t used[4 * kThreads];  // slots that have corners
  int32_t warp_sum[kThreads / 32];
  float4 grad[kThreads];  // grad_output: four channels of each thread's item
};

// The slot of a cell, and the corner's rank in it times 65536.
template <int kThreads>
__device__ __forceinline__ uint32_t take_slot(SharedMerge<kThreads>& shared, int32_t cell) {
  using Shared = SharedMerge<kThreads>;
  static_assert((Shared::kSlots & (Shared::kSlots - 1)) == 0 && Shared::kSlots <= 65536);
  uint32_t slot = (static_cast<uint32_t>(cell) * 2654435769u >> 16) % Shared::kSlots;
  for (;;) {
    const int32_t before = atomicCAS(&shared.cell[slot], -1, cell);
    if (before == -1 || before == cell) break;
    slot = (slot + 1) % Shared::kSlots;
  }
  return slot | static_cast<uint32_t>(atomicAdd(&shared.begin[slot], 1)) << 16;
}

// From the slots' numbers of corners to where they begin, and the list of slots that have any.
// Returns the length of that list.
template <int kThreads>
__device__ __forceinline__ int sort_slots(SharedMerge<kThreads>& shared) {
  using Shared = SharedMerge<kThreads>;
  constexpr int kOwn = Shared::kOwn;
  const int first = static_cast<int>(threadIdx.x) * kOwn;
  // Corners in the low half of a word, slots in the high half; both fit, for there are 4 *
  // kThreads.
  static_assert(4 * kThreads < 65536);
  const auto counts_of = [](int corners) { return corners | (corners > 0 ? 65536 : 0); };
  int own = 0;
#pragma unroll
  for (int i = 0; i < kOwn; ++i) own += counts_of(shared.begin[first + i]);
  int before = own;
#pragma unroll
  for (int distance = 1; distance < 32; distance *= 2) {
    const int other = __shfl_up_sync(kWholeWarp, before, distance);
    if (static_cast<int>(threadIdx.x) % 32 >= distance) before += other;
  }
  if (threadIdx.x % 32 == 31) shared.warp_sum[threadIdx.x / 32] = before;
  before -= own;
  __syncthreads();
  int total = 0;
#pragma unroll
  for (int warp = 0; warp < kThreads / 32; ++warp) {
    if (warp == static_cast<int>(threadIdx.x) / 32) before += total;
    total += shared.warp_sum[warp];
  }
#pragma unroll
  for (int i = 0; i < kOwn; ++i) {
    const int corners = shared.begin[first + i];
    shared.begin[first + i] = before & 65535;
    if (corners > 0) shared.used[before >> 16] = static_cast<uint16_t>(first + i);
    before += counts_of(corners);
  }
  if (threadIdx.x == kThreads - 1) shared.begin[Shared::kSlots] = total & 65535;
  return total >> 16;
}

// Adds the corners of every thread's point; called by all threads of a block together. corners:
// room for those of the block; it may be read until a thread comes here, and is free when it
// leaves. grad_value points to the thread's channels of cell 0; sample.place is 0 where the thread
// has no point.
template <int kThreads, int kLanes>
__device__ __forceinline__ void add_merged(SharedMerge<kThreads>& shared,
                                           MergedCorner (&corners)[4 * kThreads],
                                           const Sample<float>& sample, int32_t columns,
                                           const char* grad_value, int grad_stride) {
  using Shared = SharedMerge<kThreads>;
  for (int slot = threadIdx.x; slot < Shared::kSlots; slot += kThreads) {
    shared.cell[slot] = -1;
    shared.begin[slot] = 0;
  }
  __syncthreads();
  const int32_t top_left = static_cast<int32_t>(sample.place) >> 4;
  uint32_t slot_and_rank[4] = {};
#pragma unroll
  for (int c = 0; c < 4; ++c) {
    if (sample.place >> c & 1u) {
      slot_and_rank[c] = take_slot(shared, top_left + (c < 2 ? 0 : columns) + c % 2);
    }
  }
  __syncthreads();
  const int num_used = sort_slots(shared);
  __syncthreads();
#pragma unroll
  for (int c = 0; c < 4; ++c) {
    if (sample.place >> c & 1u) {
      const uint32_t slot = slot_and_rank[c] & 65535u;
      corners[shared.begin[slot] + static_cast<int>(slot_and_rank[c] >> 16)] = {
          sample.weight[c], static_cast<int32_t>(threadIdx.x) / kLanes * kLanes};
    }
  }
  __syncthreads();
  const int lane = threadIdx.x % kLanes;
  for (int i = static_cast<int>(threadIdx.x) / kLanes; i < num_used; i += kThreads / kLanes) {
    const int slot = shared.used[i];
    float sum[4] = {};
    for (int k = shared.begin[slot]; k < shared.begin[slot + 1]; ++k) {
      const MergedCorner corner = corners[k];
      const float4 grad = shared.grad[corner.first_thread + lane];
      sum[0] += corner.weight * grad.x;
      sum[1] += corner.weight * grad.y;
      sum[2] += corner.weight * grad.z;
      sum[3] += corner.weight * grad.w;
    }
    add_four(at_cell(grad_value, shared.cell[slot], grad_stride), sum);
  }
  __syncthreads();
}

}  // namespace msda
