// The feed-forward block in int8: "hopper" of quantized_feed_forward_choice.h, for compute
// capability 9.0. The hidden layer stays in registers.
//
// Problem   that of quantized_feed_forward_plain.cuh, for C = 256, and H a multiple of 64 up to
//           kMostHidden
// Threads   Persistent blocks of three warp groups. Two multiply, each 64 rows at a time. Of the
//           third, one warp loads weights and another one the rows of x to add, by TMA; two warps
//           quantise x.
// Rounds    See feed_forward_rows.cuh.
// Chunks    The hidden layer is computed 64 columns at a time. Lane 4 g + t holds columns
//           8 j + 2 t and + 1 of its sums, and needs numbers 4 t to 4 t + 3 of a row for the second
//           product. The order of the hidden columns is free, so TMA loads the rows of weight1 in
//           the order that makes these the same.
// Order     The tensor cores compute first(0), then first(k + 1) and second(k) for each chunk k. A
//           warp group quantises first(k + 1) while second(k) runs.
// Int8      The result goes through shared memory. Where it is wanted in int8 too, each warp reads
//           its 16 rows there, quantises and stores them, before the next round.
// Memory    Quantised x, a ring of tiles of weights, and a tile that first has the rows to add,
//           then the result. The kernel needs no work memory.
// Limits    those of check() and can_run(). Deterministic: a fixed order of sums.
#pragma once

#include "msda/cuda_launch.cuh"
#include "msda/feed_forward_rows.cuh"
#include "msda/quantize.cuh"
#include "msda/quantized_feed_forward_choice.h"
#include "msda/vector.cuh"

namespace msda {

struct QuantizedFeedForwardNumbers {
  const void* x;
  const float* scale1;
  const float* bias1;
  const float* scale2;
  const float* bias2;
  const void* norm_weight;
  const void* norm_bias;
  int8_t* quantized;  // or null
  int rows;
  int hidden;
  float x_factor;       // 1 / x_scale
  float hidden_factor;  // 1 / hidden_scale
  float next_factor;    // 1 / next_scale
  float eps;
};

struct QuantizedFeedForwardSizes : FeedForwardRounds {
  static constexpr int kChannels = kHopperChannels;
  static constexpr int kMostHidden = kHopperMostHidden;
  static constexpr int kThreads = 384;
  static constexpr int kQuantisers = 64;  // threads
  // Of the 168 that each thread begins with, loading warps give to those that multiply.
  static constexpr int kLoadRegisters = 40, kMultiplyRegisters = 232;
  static constexpr int kChunk = 64;        // hidden columns
  static constexpr int kPanel = 128;       // bytes of a row of a panel of x, weight1 and the result
  static constexpr int kHiddenPanel = 64;  // of weight2
  static constexpr int kPanels = kChannels / kPanel;         // of x and weight1
  static constexpr int kOutPanels = kChannels * 2 / kPanel;  // of the result
  static constexpr int kInputBytes = kRows * kChannels;      // of a warp group's x
  static constexpr int kOutBytes = kRows * kChannels * 2;    // of its result
  static constexpr int kStageBytes = kChunk * kChannels;     // of a tile of weights
  static constexpr int kNumberBytes = (kMostHidden + 2 * kChannels) * 8;
  static constexpr int kBarrierBytes = 256;
  static constexpr int kAlignment = 1024;  // of tiles, with swizzle
  static constexpr int kTileBytes = kGroups * (kInputBytes + kOutBytes);
  static constexpr int kOtherBytes = kAlignment + kTileBytes + kNumberBytes + kBarrierBytes;
  static constexpr int kStages = (232448 - kOtherBytes) / kStageBytes;
  static constexpr int kSharedBytes = kOtherBytes + kStages * kStageBytes;
  static_assert(kStages >= 4);
};

// Four int8 numbers of a word, with 0 in place of those below.
__device__ __forceinline__ uint32_t without_negatives(uint32_t word) {
#if MSDA_PTX
  uint32_t signs;
  asm("prmt.b32 %0, %1, 0, 0xba98;" : "=r"(signs) : "r"(word));
#else
  const uint32_t signs = (word >> 7 & 0x01010101u) * 0xffu;
#endif
  return word & ~signs;
}

// T is __half or __nv_bfloat16.
template <typename T>
struct QuantizedFeedForward : QuantizedFeedForwardSizes {
  struct Barriers {
    uint64_t loaded[kStages], used[kStages];  // tiles of weights
    uint64_t x_ready[kGroups], x_used[kGroups], rows_loaded[kGroups], rows_stored[kGroups];
  };
  static_assert(sizeof(Barriers) <= kBarrierBytes);

  char* x;            // of warp group 0, then of 1; as out
  char* ring;         // of weights
  char* out;          // x, to add; then the result
  float* scales1;     // [kMostHidden], with hidden_factor in them; then as many of bias1
  float* pairs2;      // [C, 2]: scale2 and bias2
  float* pairs_norm;  // [C, 2]: weight and bias of the normalisation
  Barriers* barriers;
  const QuantizedFeedForwardNumbers& numbers;

  __device__ QuantizedFeedForward(char* shared, const QuantizedFeedForwardNumbers& all)
      : numbers(all) {
    all_rows = all.rows;
    shared += (kAlignment - shared_address(shared) % kAlignment) % kAlignment;
    x = shared;
    out = x + kGroups * kInputBytes;
    ring = out + kGroups * kOutBytes;
    scales1 = reinterpret_cast<float*>(ring + kStages * kStageBytes);
    pairs2 = scales1 + 2 * kMostHidden;
    pairs_norm = pairs2 + 2 * kChannels;
    barriers = reinterpret_cast<Barriers*>(pairs_norm + 2 * kChannels);
  }

  __device__ int chunks() const { return numbers.hidden / kChunk; }

  __device__ void init() const {
    if (threadIdx.x == 0) {
      for (int i = 0; i < kStages; ++i) {
        init_barrier(&barriers->loaded[i], 1);
        init_barrier(&barriers->used[i], 8);
      }
      for (int i = 0; i < kGroups; ++i) {
        init_barrier(&barriers->x_ready[i], kQuantisers);
        init_barrier(&barriers->x_used[i], 128);
        init_barrier(&barriers->rows_loaded[i], 1);
        init_barrier(&barriers->rows_stored[i], 1);
      }
      publish_barriers();
    }
    wait_for_last_kernel();
    // relu(x) / scale = relu(x / scale), so the hidden layer's scale is part of scale1 and bias1.
    const int thread = static_cast<int>(threadIdx.x);
    for (int i = thread; i < numbers.hidden; i += kThreads) {
      scales1[i] = numbers.scale1[i] * numbers.hidden_factor;
      scales1[kMostHidden + i] = numbers.bias1[i] * numbers.hidden_factor;
    }
    for (int i = thread; i < kChannels; i += kThreads) {
      pairs2[2 * i] = numbers.scale2[i];
      pairs2[2 * i + 1] = numbers.bias2[i];
      pairs_norm[2 * i] = widen(static_cast<const T*>(numbers.norm_weight)[i]);
      pairs_norm[2 * i + 1] = widen(static_cast<const T*>(numbers.norm_bias)[i]);
    }
    // The warp groups that will multiply quantise the rows of the first round.
    if (thread < kGroups * 128) quantize_x<128, 8>(0, thread / 128, thread % 128);
    __syncthreads();
  }

  // One thread: loads the weights of all chunks of all rounds.
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
      char* const to = begin();
      for (int panel = 0; panel < kPanels; ++panel) {
        const int at[5] = {panel * kPanel, 0, 0, 0, chunk * (kChunk / 16)};
        load_tile(to + panel * kChunk * kPanel, weight1, &barriers->loaded[stage], at);
      }
      next();
    };
    const auto load_second = [&](int chunk) {
      char* const to = begin();
      load_tile(to, weight2, &barriers->loaded[stage], chunk * kChunk, 0);
      next();
    };
    load_first(0);
    for (int left = rounds(0); left > 0; --left) {
      for (int chunk = 0; chunk < count; ++chunk) {
        load_first(chunk + 1 < count ? chunk + 1 : 0);  // once more than there are products
        load_second(chunk);
      }
    }
  }

  // One thread: loads the rows to add of both warp groups.
  __device__ void load_rows(const TensorMap& x_map) const {
    int parity = 1;
    for (int round = 0; round < rounds(0); ++round, parity ^= 1) {
      for (int group = 0; group < kGroups && round < rounds(group); ++group) {
        wait_for_phase(&barriers->rows_stored[group], parity);
        expect_bytes(&barriers->rows_loaded[group], kOutBytes);
        for (int panel = 0; panel < kOutPanels; ++panel) {
          load_tile(out + group * kOutBytes + panel * kRows * kPanel, x_map,
                    &barriers->rows_loaded[group], panel * (kPanel / 2), first_row(round, group));
        }
      }
    }
  }

  // kAll threads quantise the rows of x of a warp group. Each loads kAtOnce vectors at a time.
  template <int kAll, int kAtOnce>
  __device__ void quantize_x(int round, int group, int thread) const {
    constexpr int kVector = 8, kInRow = kChannels / kVector;
    static_assert(kRows * kInRow % (kAll * kAtOnce) == 0);
    const int first = first_row(round, group);
    for (int i = thread; i < kRows * kInRow; i += kAll * kAtOnce) {
      Vector<T, kVector> vectors[kAtOnce];
#pragma unroll
      for (int j = 0; j < kAtOnce; ++j) {
        const int place = i + j * kAll, row = first + place / kInRow;
        const int64_t index = static_cast<int64_t>(row) * kChannels + place % kInRow * kVector;
        // The read-only path could run ahead of wait_for_last_kernel().
        const auto* const words =
            reinterpret_cast<const uint4*>(static_cast<const T*>(numbers.x) + index);
        vectors[j] = bits<Vector<T, kVector>>(row < numbers.rows ? *words : uint4{});
      }
#pragma unroll
      for (int j = 0; j < kAtOnce; ++j) {
        const int place = i + j * kAll, column = place % kInRow * kVector;
        const auto scaled = [&](int k) { return vectors[j][k] * numbers.x_factor; };
        const uint2 words{quantize_four(scaled(0), scaled(1), scaled(2), scaled(3)),
                          quantize_four(scaled(4), scaled(5), scaled(6), scaled(7))};
        char* const panel = x + group * kInputBytes + column / kPanel * kRows * kPanel;
        *reinterpret_cast<uint2*>(panel + swizzled<kPanel>(place / kInRow, column % kPanel)) =
            words;
      }
    }
  }

  // kQuantisers threads: quantise the rows of x of all rounds but the first.
  __device__ void quantize_rounds(int thread) const {
    int parity = 0;
    for (int round = 1; round < rounds(0); ++round, parity ^= 1) {
      for (int group = 0; group < kGroups && round < rounds(group); ++group) {
        wait_for_phase(&barriers->x_used[group], parity);
        quantize_x<kQuantisers, 4>(round, group, thread);
        arrive(&barriers->x_ready[group]);
      }
    }
  }

  // A warp group that multiplies, 0 or 1.
  __device__ void multiply(int group, const TensorMap& result) const {
    const int thread = static_cast<int>(threadIdx.x) % 128, warp = thread / 32, lane = thread % 32,
              g = lane / 4, t = lane % 4;
    const int count = chunks();
    const uint32_t zero = gridDim.z - 1;  // which the compiler does not know
    uint32_t rows[kChannels / 32][4], sums[kChannels / 2], hidden[kChunk / 2];
    uint32_t quantized[kChunk / 32][4], next[kChunk / 32][4];
    for (uint32_t& sum : hidden) sum = 0;
    int stage = 0, parity = 0, release = 0, round_parity = 0, x_parity = 1;  // x is ready
    const auto wait_for_weights = [&] {
      wait_for_phase(&barriers->loaded[stage], parity);
      const uint32_t address = shared_address(ring + stage * kStageBytes);
      if (++stage == kStages) stage = 0, parity ^= 1;
      return address;
    };
    // Each warp gives stages back in the order of their use.
    const auto give_back = [&] {
      if (lane == 0) arrive(&barriers->used[release]);
      if (++release == kStages) release = 0;
    };
    // Loads the warp group's rows of x, as fragments of the first product.
    const auto load_x = [&] {
      wait_for_phase(&barriers->x_ready[group], x_parity);
      x_parity ^= 1;
      const int row = warp * 16 + lane % 16, half = lane / 16 * 16;
#pragma unroll
      for (int k = 0; k < kChannels; k += 32) {
        load_matrices(rows[k / 32], x + group * kInputBytes + k / kPanel * kRows * kPanel +
                                        swizzled<kPanel>(row, k % kPanel + half));
      }
      for (auto& words : rows) keep_registers(words);
    };
    // Behind a first product, which has its inputs: the loads may wait for long behind the products
    // of the other warp group.
    const auto give_back_x = [&] { arrive(&barriers->x_used[group]); };
    // Begins the sums of the hidden layer of a chunk.
    const auto begin_first = [&](uint64_t weights) {
      keep_registers(hidden);
      fence_registers();
#pragma unroll
      for (int k = 0; k < kChannels; k += 32) {
        const int panel = k / kPanel, byte = k % kPanel;
        begin_products(hidden, rows[k / 32], weights + (panel * kChunk * kPanel + byte) / 16,
                       k > 0);
      }
      commit_products();
    };
    const int own = rounds(group);
    if (own > 0) {
      load_x();
      begin_first(matrix_descriptor<kPanel>(wait_for_weights()));
      wait_for_products<0>();
      keep_registers(hidden);
      give_back();
      give_back_x();
      quantize_hidden(hidden, 4 * t, next);
    }
    for (int round = 0; round < own; ++round) {
      // Products read sums, though they ignore them at first. These occupy no registers in
      // finish().
      for (uint32_t& sum : sums) sum = 0;
      for (uint32_t& sum : hidden) sum = 0;
      for (int chunk = 0; chunk < count; ++chunk) {
        const bool ends = chunk + 1 == count;
        // Products that read `next` itself would make the compiler wait before it is written again.
#pragma unroll
        for (int i = 0; i < kChunk / 32; ++i) {
#pragma unroll
          for (int j = 0; j < 4; ++j) quantized[i][j] = next[i][j] ^ zero;
          keep_registers(quantized[i]);
        }
        // The last first product is of no use: the weights are those of the first chunk again.
        const bool loads = ends && round + 1 < own;
        if (loads) load_x();
        const uint64_t weights1 = matrix_descriptor<kPanel>(wait_for_weights());
        const uint64_t weights2 = matrix_descriptor<kHiddenPanel>(wait_for_weights());
        keep_registers(sums);
        begin_first(weights1);
        fence_registers();
#pragma unroll
        for (int k = 0; k < kChunk; k += 32) {
          begin_products(sums, quantized[k / 32], weights2 + k / 16, chunk > 0 || k > 0);
        }
        commit_products();
        wait_for_products<1>();
        keep_registers(hidden);
        give_back();
        if (loads) give_back_x();
        quantize_hidden(hidden, (ends ? 0 : chunk + 1) * kChunk + 4 * t, next);
        wait_for_products<0>();
        keep_registers(sums);
        for (auto& words : quantized) keep_registers(words);
        give_back();
      }
      wait_for_phase(&barriers->rows_loaded[group], round_parity);
      round_parity ^= 1;
      finish(sums, out + group * kOutBytes, warp * 16 + g, t);
      if (numbers.quantized != nullptr) {
        __syncwarp();
        store_quantized(out + group * kOutBytes, warp * 16, first_row(round, group), lane);
      }
      publish_to_tma();
      sync_some(1 + group, 128);
      if (thread == 0) {
        for (int panel = 0; panel < kOutPanels; ++panel) {
          store_tile(out + group * kOutBytes + panel * kRows * kPanel, result, panel * (kPanel / 2),
                     first_row(round, group));
        }
        wait_for_reads_of_stores();
        arrive(&barriers->rows_stored[group]);
      }
    }
    // The weights of a round without rows.
    for (int i = own > 0 ? 1 + 2 * count * own : 0; i < 1 + 2 * count * rounds(0); ++i) {
      wait_for_weights();
      __syncwarp();  // a lane that falls behind would miss the stage
      give_back();
    }
    if (thread == 0) wait_for_stores();
  }

  // Words j of quantized[i] are those of the 32 columns that begin at 32 i, see begin_products().
  __device__ void quantize_hidden(const uint32_t (&hidden)[kChunk / 2], int column,
                                  uint32_t (&quantized)[kChunk / 32][4]) const {
#pragma unroll
    for (int i = 0; i < kChunk / 16; ++i) {
      const float* const numbers = scales1 + column + 16 * i;
      const float4 scale = *reinterpret_cast<const float4*>(numbers);
      const float4 bias = *reinterpret_cast<const float4*>(numbers + kMostHidden);
      const auto finished = [&](int index, float factor, float summand) {
        return fmaf(static_cast<float>(static_cast<int>(hidden[8 * i + index])), factor, summand);
      };
#pragma unroll
      for (int half = 0; half < 2; ++half) {  // rows g and g + 8
        const uint32_t word = quantize_four(
            finished(2 * half, scale.x, bias.x), finished(2 * half + 1, scale.y, bias.y),
            finished(2 * half + 4, scale.z, bias.z), finished(2 * half + 5, scale.w, bias.w));
        quantized[i / 2][i % 2 * 2 + half] = without_negatives(word);
      }
    }
  }

  // Adds the rows in `tile`, normalises, and leaves the result there. See normalise_rows().
  __device__ void finish(const uint32_t (&sums)[kChannels / 2], char* tile, int row, int t) const {
    const auto place = [&](int j, int half) {
      return reinterpret_cast<Packed<T>*>(tile + j / 8 * kRows * kPanel +
                                          swizzled<kPanel>(row + 8 * half, j % 8 * 16 + 4 * t));
    };
    float y[kChannels / 2];
#pragma unroll
    for (int j = 0; j < kChannels / 8; ++j) {
      const float4 pairs = *reinterpret_cast<const float4*>(pairs2 + 2 * (8 * j + 2 * t));
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const float2 added = unpack(*place(j, half));
        const int i = 4 * j + 2 * half;
        const auto sum = [&](int k) { return static_cast<float>(static_cast<int>(sums[k])); };
        y[i] = fmaf(sum(i), pairs.x, pairs.y) + added.x;
        y[i + 1] = fmaf(sum(i + 1), pairs.z, pairs.w) + added.y;
      }
    }
    normalise_rows<T>(y, pairs_norm, numbers.eps, t, [&](int j, int half, uint32_t word) {
      *reinterpret_cast<uint32_t*>(place(j, half)) = word;
    });
  }

  // A warp: stores rows `row` to row + 15 of `tile`, which has the result, in int8. Row 0 of the
  // tile is row `first` of the problem.
  __device__ void store_quantized(const char* tile, int row, int first, int lane) const {
    constexpr int kVector = kChannels / 32;
    static_assert(kVector == 8);
    const char* const panel = tile + lane / 8 * kRows * kPanel;
    int8_t* const column = numbers.quantized + lane * kVector;
#pragma unroll 8
    for (int i = 0; i < 16; ++i) {
      if (first + row + i >= numbers.rows) break;
      const auto y = *reinterpret_cast<const Vector<T, kVector>*>(
          panel + swizzled<kPanel>(row + i, lane % 8 * 16));
      const auto scaled = [&](int k) { return y[k] * numbers.next_factor; };
      *reinterpret_cast<uint2*>(column + (int64_t{first} + row + i) * kChannels) =
          uint2{quantize_four(scaled(0), scaled(1), scaled(2), scaled(3)),
                quantize_four(scaled(4), scaled(5), scaled(6), scaled(7))};
    }
  }
};

template <typename T>
__global__ void __launch_bounds__(QuantizedFeedForwardSizes::kThreads, 1)
    quantized_feed_forward_hopper_kernel(
        const __grid_constant__ TensorMap x, const __grid_constant__ TensorMap weight1,
        const __grid_constant__ TensorMap weight2, const __grid_constant__ TensorMap result,
        const __grid_constant__ QuantizedFeedForwardNumbers numbers) {
  const QuantizedFeedForward<T> own(dynamic_shared(), numbers);
  own.init();
  begin_next_kernel();
  const int group = __shfl_sync(kFullMask, static_cast<int>(threadIdx.x) / 128, 0);
  if (group == 2) {
    give_registers<QuantizedFeedForwardSizes::kLoadRegisters>();
    const int thread = static_cast<int>(threadIdx.x) % 128;
    if (thread == 0) own.load_weights(weight1, weight2);
    if (thread == 32) own.load_rows(x);
    if (thread >= 64) own.quantize_rounds(thread - 64);
  } else {
    take_registers<QuantizedFeedForwardSizes::kMultiplyRegisters>();
    own.multiply(group, result);
  }
}

template <typename T>
cudaError_t launch_quantized_feed_forward_hopper(const QuantizedFeedForwardProblem& problem,
                                                 const QuantizedFeedForwardArguments& arguments,
                                                 cudaStream_t stream) {
  using Sizes = QuantizedFeedForwardSizes;
  constexpr int64_t kC = Sizes::kChannels;
  const int64_t rows = problem.rows, hidden = problem.hidden;
  TensorMap x, weight1, weight2, result;
  constexpr int kInPanel = Sizes::kPanel / 2;  // numbers of 16 bits
  cudaError_t status =
      make_map<2>(x, 2, arguments.x, {kC, rows}, {2 * kC}, {kInPanel, Sizes::kRows}, Sizes::kPanel);
  if (status == cudaSuccess) {
    status =
        make_lane_map(weight1, 1, arguments.weight1, hidden, kC, 4, Sizes::kChunk, Sizes::kPanel);
  }
  if (status == cudaSuccess) {
    status = make_map<2>(weight2, 1, arguments.weight2, {hidden, kC}, {hidden},
                         {Sizes::kHiddenPanel, Sizes::kChannels}, Sizes::kHiddenPanel);
  }
  if (status == cudaSuccess) {
    status = make_map<2>(result, 2, arguments.output, {kC, rows}, {2 * kC},
                         {kInPanel, Sizes::kRows}, Sizes::kPanel);
  }
  if (status != cudaSuccess) return status;
  const auto floats = [](const void* tensor) { return static_cast<const float*>(tensor); };
  const QuantizedFeedForwardNumbers numbers{arguments.x,
                                            floats(arguments.scale1),
                                            floats(arguments.bias1),
                                            floats(arguments.scale2),
                                            floats(arguments.bias2),
                                            arguments.norm_weight,
                                            arguments.norm_bias,
                                            static_cast<int8_t*>(arguments.quantized),
                                            static_cast<int>(rows),
                                            static_cast<int>(hidden),
                                            1 / problem.x_scale,
                                            1 / problem.hidden_scale,
                                            1 / problem.next_scale,
                                            static_cast<float>(problem.eps)};
  const int64_t tiles = (rows + Sizes::kRows - 1) / Sizes::kRows;
  return launch_persistent(quantized_feed_forward_hopper_kernel<T>, tiles, Sizes::kThreads,
                           Sizes::kSharedBytes, stream, x, weight1, weight2, result, numbers);
}

}  // namespace msda
