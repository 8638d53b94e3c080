// The largest numbers of rows by one or two kernels that hold them in registers: "parts" of
// top_k_choice.h.
//
// Problem   that of top_k_plain.cuh, for up to 1024 numbers to find.
// Parts     A row is cut into parts. A block finds the K largest numbers of a part, in any order. A
//           block of the second kernel finds those of all parts of a row, and sorts them. A row of
//           one part needs the first kernel only. top_k_plan() cuts rows.
// Threads   Every thread holds kItems keys of top_k_plain.cuh in registers. No two keys of a row
// are
//           equal, so the K largest are those from a threshold on.
// Search    The block finds the threshold bit by bit, from the first in which its keys differ: it
//           counts the keys that are at least as large as the threshold with the bit. Exactly K end
//           the search.
// Sort      Bitonic, with a key a thread: within a warp by shuffles, else through shared memory.
// Launch    From compute capability 9.0 on, blocks of the second kernel begin where those of the
//           first have ended, and wait for the others.
// Limits    those of check() in top_k_params.h, and of top_k_plan(). Deterministic: the threshold
//           and the order depend on the keys alone.
#pragma once

#include "msda/top_k_plain.cuh"

namespace msda {

inline constexpr int kTopKWarps = kTopKThreads / 32;

// What the threads of a block share.
struct TopKShared {
  uint32_t words[2][2][kTopKWarps];  // of every warp, in turns of a barrier
  uint64_t keys[kTopKThreads];       // the largest
  int found;                         // how many of them lie there
};

// Combines one word of every thread of the block by sums or by bitwise or. Every thread gets the
// result. `turn` alternates between 0 and 1 from call to call.
__device__ __forceinline__ int sum_over_block(int number, int turn, TopKShared& shared) {
  const int thread = static_cast<int>(threadIdx.x);
  const int sum = sum_over_warp(number);
  if (thread % 32 == 0) shared.words[turn][0][thread / 32] = static_cast<uint32_t>(sum);
  __syncthreads();
  return sum_over_warp(static_cast<int>(shared.words[turn][0][thread % 32]));
}
__device__ __forceinline__ uint64_t or_over_block(uint64_t bits, int turn, TopKShared& shared) {
  const int thread = static_cast<int>(threadIdx.x);
  const uint32_t low = or_over_warp(static_cast<uint32_t>(bits));
  const uint32_t high = or_over_warp(static_cast<uint32_t>(bits >> 32));
  if (thread % 32 == 0) {
    shared.words[turn][0][thread / 32] = low;
    shared.words[turn][1][thread / 32] = high;
  }
  __syncthreads();
  const uint64_t upper = or_over_warp(shared.words[turn][1][thread % 32]);
  return upper << 32 | or_over_warp(shared.words[turn][0][thread % 32]);
}

// Returns the `count`-th largest key of the block, or a smaller number that no other key reaches.
// Keys of 0 are none. `some` is any other key, and there are `count` others or more.
template <int kItems>
__device__ __forceinline__ uint64_t find_threshold(const uint64_t (&keys)[kItems], uint64_t some,
                                                   int count, TopKShared& shared) {
  uint64_t differing = 0;
#pragma unroll
  for (int i = 0; i < kItems; ++i) differing |= keys[i] != 0 ? keys[i] ^ some : 0;
  differing = or_over_block(differing, 0, shared);
  if (differing == 0) return some;
  int bit = 63;
  while ((differing >> bit) == 0) --bit;
  uint64_t threshold = bit == 63 ? 0 : some >> (bit + 1) << (bit + 1);
  for (int turn = 1; bit >= 0; --bit, turn ^= 1) {
    const uint64_t trial = threshold | uint64_t{1} << bit;
    int own = 0;
#pragma unroll
    for (int i = 0; i < kItems; ++i) own += keys[i] >= trial;
    const int reaching = sum_over_block(own, turn, shared);
    if (reaching >= count) threshold = trial;
    if (reaching == count) break;
  }
  return threshold;
}

// Copies the keys from the threshold on to shared.keys, and zeros behind them up to `places`.
template <int kItems>
__device__ __forceinline__ void collect(const uint64_t (&keys)[kItems], uint64_t threshold,
                                        int places, TopKShared& shared) {
  const int thread = static_cast<int>(threadIdx.x), lane = thread % 32;
  int own = 0;
#pragma unroll
  for (int i = 0; i < kItems; ++i) own += keys[i] >= threshold;
  int before = own;  // of the lanes up to this one
#pragma unroll
  for (int distance = 1; distance < 32; distance *= 2) {
    const int theirs = __shfl_up_sync(kFullMask, before, distance);
    if (lane >= distance) before += theirs;
  }
  int place = 0;
  if (lane == 31 && before > 0) place = atomicAdd(&shared.found, before);
  place = __shfl_sync(kFullMask, place, 31) + before - own;
#pragma unroll
  for (int i = 0; i < kItems; ++i) {
    if (keys[i] >= threshold) shared.keys[place++] = keys[i];
  }
  __syncthreads();
  if (thread >= shared.found && thread < places) shared.keys[thread] = 0;
  __syncthreads();
}

// Returns the key of the thread's place among the first `places` of shared.keys, a power of two,
// largest first.
__device__ __forceinline__ uint64_t sort(int places, TopKShared& shared) {
  const int thread = static_cast<int>(threadIdx.x);
  uint64_t key = shared.keys[thread < places ? thread : 0];
  for (int run = 2; run <= places; run *= 2) {
    for (int distance = run / 2; distance > 0; distance /= 2) {
      uint64_t other;
      if (distance < 32) {
        other = __shfl_xor_sync(kFullMask, key, distance);
      } else {
        __syncthreads();
        shared.keys[thread] = key;
        __syncthreads();
        other = shared.keys[thread ^ distance];
      }
      const bool takes_larger = ((thread & run) == 0) == ((thread & distance) == 0);
      key = (key > other) == takes_larger ? key : other;
    }
  }
  return key;
}

// kFirst: reads x, else the keys of the work memory [N, parts * K]. kLast: writes indices, else
// keys.
template <int kItems, bool kFirst, bool kLast>
__global__ void __launch_bounds__(kTopKThreads)
    top_k_parts_kernel(const __grid_constant__ TopKArguments arguments, int size, int count,
                       int parts, int part_size) {
  __shared__ TopKShared shared;
  const int thread = static_cast<int>(threadIdx.x);
  const int row = static_cast<int>(blockIdx.x) / parts;
  const int start = (static_cast<int>(blockIdx.x) - row * parts) * part_size;
  const int numbers = min(part_size, size - start);
  if (thread == 0) shared.found = 0;  // the barriers of the search show it
  if constexpr (kFirst) {
    if constexpr (!kLast) begin_next_kernel();
  } else {
    wait_for_last_kernel();
  }

  const auto key = [&](int i) {
    const int64_t place = static_cast<int64_t>(row) * size + start + i;
    if constexpr (kFirst) {
      return top_k_key(arguments.x[place], start + i);
    } else {
      return static_cast<const uint64_t*>(arguments.work)[place];
    }
  };
  uint64_t keys[kItems];
#pragma unroll
  for (int i = 0; i < kItems; ++i) {
    const int number = i * kTopKThreads + thread;
    keys[i] = number < numbers ? key(number) : 0;
  }
  const int wanted = min(count, numbers);
  const uint64_t threshold = find_threshold(keys, key(0), wanted, shared);

  if constexpr (kLast) {
    int places = 32;
    while (places < count) places *= 2;
    collect(keys, threshold, places, shared);
    const uint64_t sorted = sort(places, shared);
    if (thread < count) {
      arguments.indices[static_cast<int64_t>(row) * count + thread] = top_k_index(sorted);
    }
  } else {
    collect(keys, threshold, count, shared);
    if (thread < count) {
      static_cast<uint64_t*>(arguments.work)[static_cast<int64_t>(blockIdx.x) * count + thread] =
          shared.keys[thread];
    }
  }
}

inline cudaError_t launch_top_k_parts(const TopKProblem& problem, const TopKArguments& arguments,
                                      cudaStream_t stream) {
  const TopKPlan plan = top_k_plan(problem);
  const int size = static_cast<int>(problem.size), count = static_cast<int>(problem.count);
  const int parts = static_cast<int>(plan.parts);
  const int part_size = static_cast<int>(plan.part_size(problem));
  const dim3 blocks(static_cast<unsigned>(problem.rows * plan.parts));
  const cudaError_t status = with_constant<4, 8, 16>(plan.items, [&](auto items) {
    const auto kernel = parts == 1 ? top_k_parts_kernel<items(), true, true>
                                   : top_k_parts_kernel<items(), true, false>;
    return launch(kernel, blocks, kTopKThreads, stream, arguments, size, count, parts, part_size);
  });
  if (status != cudaSuccess || parts == 1) return status;
  const int candidates = parts * count;
  return with_constant<4, 8, 16>(plan.final_items, [&](auto items) {
    const dim3 rows(static_cast<unsigned>(problem.rows));
    return launch_early(launch_config(rows, kTopKThreads, stream),
                        top_k_parts_kernel<items(), false, true>, arguments, candidates, count, 1,
                        candidates);
  });
}

}  // namespace msda
