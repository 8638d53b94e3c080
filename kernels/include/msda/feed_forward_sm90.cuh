// The feed-forward block in 16 bits: "hopper" of feed_forward_choice.h, for compute capability 9.0.
// The hidden layer stays in registers.
//
// Problem   that of feed_forward_plain.cuh in half or bfloat16, for C = 256, and H a multiple of 64
//           up to kMostHidden
// Threads   Persistent blocks of three warp groups. Two multiply. Of the third, one thread loads
//           weights and another one the rows of x, by TMA.
// Rounds    See feed_forward_rows.cuh.
// Chunks    The hidden layer is computed 64 columns at a time. The sums that a lane has of the
//           first product are its fragments of the second one, once they are packed.
// Order     The tensor cores compute first(0), then first(k + 1) and second(k) for each chunk k. A
//           warp group packs first(k + 1) while second(k) runs.
// Memory    Three buffers of 64 rows, and a ring of half chunks of weights. A buffer has x, which
//           the first product reads and finish() adds, then the result. Two are in use; the third
//           one gets the next x of the warp group that ends its round first. The kernel needs no
//           work memory.
// Limits    those of check() and can_run(). Deterministic: a fixed order of sums.
#pragma once

#include "msda/cuda_launch.cuh"
#include "msda/feed_forward_choice.h"
#include "msda/feed_forward_rows.cuh"
#include "msda/vector.cuh"

namespace msda {

struct FeedForwardNumbers {
  const void* bias1;
  const void* bias2;
  const void* norm_weight;
  const void* norm_bias;
  float* sums;  // of kernel `split`: [slices, M, C]
  int rows;
  int hidden;  // of a block
  float eps;
};

struct FeedForwardSizes : FeedForwardRounds {
  static constexpr int kChannels = kHopperChannels;
  static constexpr int kMostHidden = kHopperMostHidden;
  static constexpr int kThreads = 384;
  // Of the 168 that each thread begins with, loading warps give to those that multiply.
  static constexpr int kLoadRegisters = 24, kMultiplyRegisters = 240;
  static constexpr int kChunk = 64;        // hidden columns
  static constexpr int kPanel = 128;       // bytes of a row of a panel of x, weight1 and the result
  static constexpr int kHiddenPanel = 64;  // of weight2
  static constexpr int kPanels = kChannels * 2 / kPanel;  // of x and the result
  static constexpr int kPanelBytes = kRows * kPanel;      // of x, weight1 and the result
  static constexpr int kBufferBytes = kPanels * kPanelBytes;
  static constexpr int kStageBytes = kChunk * kChannels;  // half a chunk of a weight
  static constexpr int kBuffers = 3;
  static constexpr int kNumberBytes = (kMostHidden + 3 * kChannels) * 4;
  static constexpr int kBarrierBytes = 256;
  static constexpr int kAlignment = 1024;  // of tiles, with swizzle
  static constexpr int kOtherBytes =
      kAlignment + kBuffers * kBufferBytes + kNumberBytes + kBarrierBytes;
  static constexpr int kStages = (232448 - kOtherBytes) / kStageBytes;
  static constexpr int kSharedBytes = kOtherBytes + kStages * kStageBytes;
  static_assert(kStages >= 6);
};

// Two numbers of T, with 0 in place of those below, the first in the lower half. NaN stays NaN.
template <typename T>
__device__ __forceinline__ uint32_t pack_relu(float low, float high) {
#if MSDA_PTX
  uint32_t word;
  if constexpr (std::is_same_v<T, __half>) {
    asm("cvt.rn.relu.f16x2.f32 %0, %1, %2;" : "=r"(word) : "f"(high), "f"(low));
  } else {
    asm("cvt.rn.relu.bf16x2.f32 %0, %1, %2;" : "=r"(word) : "f"(high), "f"(low));
  }
  return word;
#else
  const auto relu = [](float x) { return x < 0 ? 0.0f : x; };
  return pack<T>(relu(low), relu(high));
#endif
}

// T is __half or __nv_bfloat16. kSplit: a block multiplies a slice of the hidden layer, and stores
// the sums of y, see feed_forward_split.cuh.
template <typename T, bool kSplit = false>
struct FeedForward : FeedForwardSizes {
  struct Barriers {
    uint64_t loaded[kStages], used[kStages];  // stages of the ring
    uint64_t rows_loaded[kBuffers], rows_stored[kBuffers];
  };
  static_assert(sizeof(Barriers) <= kBarrierBytes);

  char* buffers;      // of rows
  char* ring;         // of weights
  float* bias1;       // [kMostHidden]
  float* bias2;       // [C]
  float* pairs_norm;  // [C, 2]: weight and bias of the normalisation
  Barriers* barriers;
  const FeedForwardNumbers& numbers;

  __device__ FeedForward(char* shared, const FeedForwardNumbers& all) : numbers(all) {
    all_rows = all.rows;
    shared += (kAlignment - shared_address(shared) % kAlignment) % kAlignment;
    buffers = shared;
    ring = buffers + kBuffers * kBufferBytes;
    bias1 = reinterpret_cast<float*>(ring + kStages * kStageBytes);
    bias2 = bias1 + kMostHidden;
    pairs_norm = bias2 + kChannels;
    barriers = reinterpret_cast<Barriers*>(pairs_norm + 2 * kChannels);
  }

  __device__ int chunks() const { return numbers.hidden / kChunk; }
  // The first hidden column of a chunk of the block.
  __device__ int hidden_column(int chunk) const {
    return (kSplit ? static_cast<int>(blockIdx.y) * numbers.hidden : 0) + chunk * kChunk;
  }

  __device__ void init() const {
    if (threadIdx.x == 0) {
      for (int i = 0; i < kStages; ++i) {
        init_barrier(&barriers->loaded[i], 1);
        init_barrier(&barriers->used[i], 8);
      }
      for (int i = 0; i < kBuffers; ++i) {
        init_barrier(&barriers->rows_loaded[i], 1);
        init_barrier(&barriers->rows_stored[i], 1);
      }
      publish_barriers();
    }
    wait_for_last_kernel();
    const int thread = static_cast<int>(threadIdx.x);
    const auto number = [](const void* tensor, int i) {
      return widen(static_cast<const T*>(tensor)[i]);
    };
    for (int i = thread; i < numbers.hidden; i += kThreads) {
      bias1[i] = number(numbers.bias1, hidden_column(0) + i);
    }
    // A slice of the hidden layer has sums only.
    for (int i = thread; !kSplit && i < kChannels; i += kThreads) {
      bias2[i] = number(numbers.bias2, i);
      pairs_norm[2 * i] = number(numbers.norm_weight, i);
      pairs_norm[2 * i + 1] = number(numbers.norm_bias, i);
    }
    __syncthreads();
  }

  // One thread: loads the weights of all chunks of all rounds. A chunk of a weight takes two
  // stages.
  __device__ void load_weights(const TensorMap& weight1, const TensorMap& weight2) const {
    const int count = chunks();
    int stage = 0, parity = 1;
    const auto begin = [&] {
      wait_for_phase(&barriers->used[stage], parity);
      expect_bytes(&barriers->loaded[stage], kStageBytes);
      return ring + stage * kStageBytes;
    };
    const auto next = [&] {
      if (++stage == kStages) stage = 0, parity ^= 1;
    };
    const auto load_first = [&](int chunk) {
      for (int half = 0; half < 2; ++half) {
        char* const to = begin();
        for (int panel = 0; panel < 2; ++panel) {
          load_tile(to + panel * kPanelBytes, weight1, &barriers->loaded[stage],
                    (2 * half + panel) * (kPanel / 2), hidden_column(chunk));
        }
        next();
      }
    };
    const auto load_second = [&](int chunk) {
      for (int half = 0; half < 2; ++half) {
        char* const to = begin();
        load_tile(to, weight2, &barriers->loaded[stage],
                  hidden_column(chunk) + half * (kHiddenPanel / 2), 0);
        next();
      }
    };
    for (int left = rounds(0); left > 0; --left) {
      load_first(0);
      for (int chunk = 0; chunk < count; ++chunk) {
        if (chunk + 1 < count) load_first(chunk + 1);
        load_second(chunk);
      }
    }
  }

  // One thread: loads the rows of both warp groups in turn, into one buffer after the other.
  __device__ void load_rows(const TensorMap& x) const {
    const int count = rounds(0) + rounds(1);
    for (int i = 0; i < count; ++i) {
      const int buffer = i % kBuffers;
      wait_for_phase(&barriers->rows_stored[buffer], i / kBuffers % 2 ^ 1);
      expect_bytes(&barriers->rows_loaded[buffer], kBufferBytes);
      for (int panel = 0; panel < kPanels; ++panel) {
        load_tile(buffers + buffer * kBufferBytes + panel * kPanelBytes, x,
                  &barriers->rows_loaded[buffer], panel * (kPanel / 2),
                  first_row(i / kGroups, i % kGroups));
      }
    }
  }

  // A warp group that multiplies, 0 or 1.
  __device__ void multiply(int group, const TensorMap& result) const {
    const int thread = static_cast<int>(threadIdx.x) % 128, warp = thread / 32, lane = thread % 32,
              g = lane / 4, t = lane % 4;
    const int count = chunks();
    const uint32_t zero = gridDim.z - 1;  // which the compiler does not know
    float sums[kChannels / 2], hidden[kChunk / 2];
    uint32_t packed[kChunk / 16][4], next[kChunk / 16][4];
    int stage = 0, parity = 0, release = 0;
    const auto wait_for_weights = [&] {
      wait_for_phase(&barriers->loaded[stage], parity);
      const uint32_t address = shared_address(ring + stage * kStageBytes);
      if (++stage == kStages) stage = 0, parity ^= 1;
      return address;
    };
    // Each warp gives stages back in the order of their use.
    const auto give_back = [&](int stages) {
      for (int i = 0; i < stages; ++i) {
        if (lane == 0) arrive(&barriers->used[release]);
        if (++release == kStages) release = 0;
      }
    };
    // Begins the sums of the hidden layer of a chunk.
    const auto begin_first = [&](uint64_t x) {
      keep_registers(hidden);
      fence_registers();
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const uint64_t weights = matrix_descriptor<kPanel>(wait_for_weights());
#pragma unroll
        for (int k = 0; k < kChannels / 2; k += 16) {
          const int place = k / 64 * kPanelBytes + k % 64 * 2;
          begin_products<T>(hidden, x + (2 * half * kPanelBytes + place) / 16, weights + place / 16,
                            half > 0 || k > 0);
        }
      }
      commit_products();
    };
    const auto begin_second = [&](int chunk) {
      fence_registers();
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const uint64_t weights = matrix_descriptor<kHiddenPanel>(wait_for_weights());
#pragma unroll
        for (int k = 0; k < 2; ++k) {
          begin_products<T>(sums, packed[2 * half + k], weights + k * 32 / 16,
                            chunk > 0 || half > 0 || k > 0);
        }
      }
      commit_products();
    };
    const int own = rounds(group);
    for (int round = 0; round < own; ++round) {
      const int turn = round * kGroups + group, buffer = turn % kBuffers;
      char* const rows = buffers + buffer * kBufferBytes;
      wait_for_phase(&barriers->rows_loaded[buffer], turn / kBuffers % 2);
      const uint64_t x = matrix_descriptor<kPanel>(shared_address(rows));
      // Products read sums, though they ignore them at first.
      for (float& sum : hidden) sum = 0;
      for (float& sum : sums) sum = 0;
      begin_first(x);
      wait_for_products<0>();
      keep_registers(hidden);
      give_back(2);
      pack_hidden(hidden, 2 * t, next);
      for (int chunk = 0; chunk < count; ++chunk) {
        // Products that read `next` itself would make the compiler wait before it is written again.
#pragma unroll
        for (int i = 0; i < kChunk / 16; ++i) {
#pragma unroll
          for (int j = 0; j < 4; ++j) packed[i][j] = next[i][j] ^ zero;
          keep_registers(packed[i]);
        }
        keep_registers(sums);
        // ptxas would serialise products that are begun and waited for in two branches.
        if (chunk + 1 < count) {
          begin_first(x);
          begin_second(chunk);
          wait_for_products<1>();
          keep_registers(hidden);
          give_back(2);
          pack_hidden(hidden, (chunk + 1) * kChunk + 2 * t, next);
        } else {
          begin_second(chunk);
        }
        wait_for_products<0>();
        keep_registers(sums);
        for (auto& words : packed) keep_registers(words);
        give_back(2);
      }
      if constexpr (kSplit) {
        store_sums(sums, first_row(round, group) + warp * 16 + g, t);
        continue;
      }
      finish(sums, rows, warp * 16 + g, t);
      publish_to_tma();
      sync_some(1 + group, 128);
      if (thread == 0) {
        for (int panel = 0; panel < kPanels; ++panel) {
          store_tile(rows + panel * kPanelBytes, result, panel * (kPanel / 2),
                     first_row(round, group));
        }
        wait_for_reads_of_stores();
        arrive(&barriers->rows_stored[buffer]);
      }
    }
    // The weights of a round without rows.
    for (int i = 4 * count * own; i < 4 * count * rounds(0); ++i) {
      wait_for_weights();
      __syncwarp();  // a lane that falls behind would miss the stage
      give_back(1);
    }
    if (thread == 0) wait_for_stores();
  }

  // Words j of packed[i] are those of the 16 columns that begin at 16 i, see begin_products().
  __device__ void pack_hidden(const float (&hidden)[kChunk / 2], int column,
                              uint32_t (&packed)[kChunk / 16][4]) const {
#pragma unroll
    for (int j = 0; j < kChunk / 8; ++j) {
      const float2 bias = *reinterpret_cast<const float2*>(bias1 + column + 8 * j);
#pragma unroll
      for (int half = 0; half < 2; ++half) {  // rows g and g + 8
        const float* const two = hidden + 4 * j + 2 * half;
        packed[j / 2][j % 2 * 2 + half] = pack_relu<T>(two[0] + bias.x, two[1] + bias.y);
      }
    }
  }

  // Stores the sums of two rows, `row` and row + 8.
  __device__ void store_sums(const float (&sums)[kChannels / 2], int row, int t) const {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int64_t at = int64_t{blockIdx.y} * numbers.rows + row + 8 * half;
      float2* const to = reinterpret_cast<float2*>(numbers.sums + at * kChannels) + t;
      if (row + 8 * half >= numbers.rows) break;
#pragma unroll
      for (int j = 0; j < kChannels / 8; ++j) {
        to[4 * j] = {sums[4 * j + 2 * half], sums[4 * j + 2 * half + 1]};
      }
    }
  }

  // Adds the rows in `tile`, normalises, and leaves the result there. See normalise_rows().
  __device__ void finish(float (&sums)[kChannels / 2], char* tile, int row, int t) const {
    const auto place = [&](int j, int half) {
      return reinterpret_cast<Packed<T>*>(tile + j / 8 * kPanelBytes +
                                          swizzled<kPanel>(row + 8 * half, j % 8 * 16 + 4 * t));
    };
#pragma unroll
    for (int j = 0; j < kChannels / 8; ++j) {
      const float2 bias = *reinterpret_cast<const float2*>(bias2 + 8 * j + 2 * t);
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const float2 added = unpack(*place(j, half));
        sums[4 * j + 2 * half] += bias.x + added.x;
        sums[4 * j + 2 * half + 1] += bias.y + added.y;
      }
    }
    normalise_rows<T>(sums, pairs_norm, numbers.eps, t, [&](int j, int half, uint32_t word) {
      *reinterpret_cast<uint32_t*>(place(j, half)) = word;
    });
  }
};

template <typename T, bool kSplit>
__global__ void __launch_bounds__(FeedForwardSizes::kThreads, 1)
    feed_forward_hopper_kernel(const __grid_constant__ TensorMap x,
                               const __grid_constant__ TensorMap weight1,
                               const __grid_constant__ TensorMap weight2,
                               const __grid_constant__ TensorMap result,
                               const __grid_constant__ FeedForwardNumbers numbers) {
  const FeedForward<T, kSplit> own(dynamic_shared(), numbers);
  own.init();
  begin_next_kernel();
  const int group = __shfl_sync(kFullMask, static_cast<int>(threadIdx.x) / 128, 0);
  if (group == 2) {
    give_registers<FeedForwardSizes::kLoadRegisters>();
    const int thread = static_cast<int>(threadIdx.x) % 128;
    if (thread == 0) own.load_weights(weight1, weight2);
    if (thread == 32) own.load_rows(x);
  } else {
    take_registers<FeedForwardSizes::kMultiplyRegisters>();
    own.multiply(group, result);
  }
}

// Calls launch(x, weight1, weight2, result, numbers) with what the kernel reads. `slices` is 1, or
// the number that kernel `split` cuts the hidden layer into.
template <typename T, typename Launch>
cudaError_t with_feed_forward(const FeedForwardProblem& problem,
                              const FeedForwardArguments& arguments, int64_t slices,
                              const Launch& launch) {
  using Sizes = FeedForwardSizes;
  const int64_t channels = Sizes::kChannels, rows = problem.rows, hidden = problem.hidden;
  cudaError_t status = cudaSuccess;
  // A matrix of 16-bit numbers, in boxes as wide as a panel.
  const auto make = [&](TensorMap& map, const void* data, int64_t height, int64_t width,
                        int box_rows, int panel) {
    if (status != cudaSuccess) return;
    status = make_map<2>(map, 2, data, {width, height}, {2 * width}, {panel / 2, box_rows}, panel);
  };
  TensorMap x, weight1, weight2, result;
  make(x, arguments.x, rows, channels, Sizes::kRows, Sizes::kPanel);
  make(weight1, arguments.weight1, hidden, channels, Sizes::kChunk, Sizes::kPanel);
  make(weight2, arguments.weight2, channels, hidden, Sizes::kChannels, Sizes::kHiddenPanel);
  make(result, arguments.output, rows, channels, Sizes::kRows, Sizes::kPanel);
  if (status != cudaSuccess) return status;
  const FeedForwardNumbers numbers{arguments.bias1,
                                   arguments.bias2,
                                   arguments.norm_weight,
                                   arguments.norm_bias,
                                   static_cast<float*>(arguments.work),
                                   static_cast<int>(rows),
                                   static_cast<int>(hidden / slices),
                                   static_cast<float>(problem.eps)};
  return launch(x, weight1, weight2, result, numbers);
}

template <typename T>
cudaError_t launch_feed_forward_hopper(const FeedForwardProblem& problem,
                                       const FeedForwardArguments& arguments, cudaStream_t stream) {
  using Sizes = FeedForwardSizes;
  return with_feed_forward<T>(problem, arguments, 1, [&](const auto&... all) {
    const int64_t units = (problem.rows + Sizes::kRows - 1) / Sizes::kRows;
    return launch_persistent(feed_forward_hopper_kernel<T, false>, units, Sizes::kThreads,
                             Sizes::kSharedBytes, stream, all...);
  });
}

}  // namespace msda
