// Linear layers with int8 inputs: "rows" of quantized_linear_choice.h, for compute capability 9.0.
//
// Problem   that of quantized_linear_plain.cuh in int8 without a residual. The result has 8 or 16
//           bits. K has kPanels panels of 128 numbers, the last one filled with zeros. N is a
//           multiple of kGroupColumns, up to kMostOutputs.
// Threads   Persistent blocks of three warp groups. Two multiply, 64 rows each. Of the third, one
//           thread loads weights and another one the rows of x, by TMA.
// Work      The result is a sequence of chunks of 128 x 128, those of the same rows one after the
//           other. Each block gets an equal part of it. Both warp groups multiply by the same
//           weights.
// Order     A warp group multiplies one panel after the other. While the tensor cores work, it
//           finishes a part of its last chunk: scale, bias, activation, mask, rounding.
// Columns   Lane 4 g + t gets columns 8 v + 2 t and + 1 of the tensor cores' sums. The order of the
//           columns of a product is free, so TMA loads the rows of the weight in the order that
//           gives a lane 16 consecutive bytes of the result.
// Memory    Rows of x, a ring of panels of weights, and all scales and biases. No work memory.
// Limits    those of check() and can_run(). Deterministic: sums are exact.
#pragma once

#include "msda/cuda_launch.cuh"
#include "msda/gelu.cuh"
#include "msda/hopper.cuh"
#include "msda/quantize.cuh"
#include "msda/quantized_linear_choice.h"
#include "msda/vector.cuh"

namespace msda {

struct QuantizedLinearRowsNumbers {
  const float* scale;
  const float* bias;  // or null
  const void* mask;   // or null
  void* output;
  int rows;
  int outputs;
  DataType type;  // of mask
  float factor;   // 1 / output_scale
};

struct QuantizedLinearRowsSizes {
  static constexpr int kRows = 64;  // of a warp group
  static constexpr int kGroups = 2;
  static constexpr int kChunk = 128;  // columns
  static constexpr int kPanel = 128;  // bytes of a row of a panel
  static constexpr int kThreads = 384;
  // Of the 168 that each thread begins with, loading warps give to those that multiply.
  static constexpr int kLoadRegisters = 24, kMultiplyRegisters = 240;
  static constexpr int kMostPanels = 6;
  static constexpr int kMostOutputs = kRowsMostOutputs;
  static constexpr int kPanelBytes = kRows * kPanel;   // of x
  static constexpr int kStageBytes = kChunk * kPanel;  // of a panel of weights
  static constexpr int kInputBytes = kMostPanels * kPanelBytes;
  static constexpr int kNumberBytes = kMostOutputs * 8;
  static constexpr int kBarrierBytes = 512;
  static constexpr int kAlignment = 1024;  // of tiles, with swizzle
  static constexpr int kOtherBytes =
      kAlignment + kGroups * kInputBytes + kNumberBytes + kBarrierBytes;
  static constexpr int kStages = (232448 - kOtherBytes) / kStageBytes;
  static constexpr int kSharedBytes = kOtherBytes + kStages * kStageBytes;
  static_assert(kStages >= 6);
};

// Out is int8_t, __half or __nv_bfloat16.
template <typename Out, int kPanels, Activation kActivation>
struct QuantizedLinearRows : QuantizedLinearRowsSizes {
  static constexpr int kBuffers = kMostPanels / kPanels;  // of rows of x, of a warp group
  static_assert(kBuffers >= 1);
  static constexpr bool kQuantized = std::is_same_v<Out, int8_t>;
  static constexpr int kLaneColumns = 16 / sizeof(Out);   // consecutive ones
  static constexpr int kGroupColumns = 4 * kLaneColumns;  // of the lanes of a quad
  // Whether x goes to the tensor cores from registers: it saves a third of the reads of shared
  // memory.
  static constexpr bool kInRegisters = kPanels <= 2;
  struct Barriers {
    uint64_t loaded[kStages], used[kStages];
    uint64_t x_loaded[kGroups][kBuffers], x_used[kGroups][kBuffers];
  };
  static_assert(sizeof(Barriers) <= kBarrierBytes);

  char* x;     // of warp group 0, then of 1
  char* ring;  // of weights
  float* scales;
  float* biases;
  Barriers* barriers;
  const QuantizedLinearRowsNumbers& numbers;
  int across, begin, end;  // chunks of a row, and those of this block

  __device__ QuantizedLinearRows(char* shared, const QuantizedLinearRowsNumbers& all)
      : numbers(all) {
    shared += (kAlignment - shared_address(shared) % kAlignment) % kAlignment;
    x = shared;
    ring = x + kGroups * kInputBytes;
    scales = reinterpret_cast<float*>(ring + kStages * kStageBytes);
    biases = scales + kMostOutputs;
    barriers = reinterpret_cast<Barriers*>(biases + kMostOutputs);
    across = (all.outputs + kChunk - 1) / kChunk;
    const int64_t chunks =
        static_cast<int64_t>((all.rows + kGroups * kRows - 1) / (kGroups * kRows)) * across;
    const auto first = [&](int block) { return static_cast<int>(chunks * block / gridDim.x); };
    begin = first(static_cast<int>(blockIdx.x));
    end = first(static_cast<int>(blockIdx.x) + 1);
  }

  __device__ int first_row(int chunk, int group) const {
    return (chunk / across * kGroups + group) * kRows;
  }
  // Whether a chunk is the first one of this block with its rows.
  __device__ bool is_first(int chunk) const { return chunk == begin || chunk % across == 0; }

  // Where the number of a column is. Lanes of a quad read numbers 16 columns apart at once, and
  // would meet in the same banks.
  __device__ static int number_place(int column) { return column ^ (column >> 5 & 1) << 3; }

  __device__ void init() const {
    if (threadIdx.x == 0) {
      for (int i = 0; i < kStages; ++i) {
        init_barrier(&barriers->loaded[i], 1);
        init_barrier(&barriers->used[i], 4 * kGroups);
      }
      for (int i = 0; i < kGroups; ++i) {
        for (int j = 0; j < kBuffers; ++j) {
          init_barrier(&barriers->x_loaded[i][j], 1);
          init_barrier(&barriers->x_used[i][j], 4);
        }
      }
      publish_barriers();
    }
    wait_for_last_kernel();
    for (int i = static_cast<int>(threadIdx.x); i < across * kChunk; i += kThreads) {
      const bool inside = i < numbers.outputs;
      const int place = number_place(i);
      scales[place] = inside ? numbers.scale[i] : 0;
      biases[place] = inside && numbers.bias != nullptr ? numbers.bias[i] : 0;
    }
    __syncthreads();
  }

  // One thread: loads the weights of all chunks.
  __device__ void load_weights(const TensorMap& weight) const {
    int stage = 0, parity = 1;
    for (int chunk = begin; chunk < end; ++chunk) {
      for (int panel = 0; panel < kPanels; ++panel) {
        wait_for_phase(&barriers->used[stage], parity);
        expect_bytes(&barriers->loaded[stage], kStageBytes);
        const int at[5] = {panel * kPanel, 0, 0, 0, chunk % across * (kChunk / kGroupColumns)};
        load_tile(ring + stage * kStageBytes, weight, &barriers->loaded[stage], at);
        if (++stage == kStages) stage = 0, parity ^= 1;
      }
    }
  }

  // One thread: loads the rows of both warp groups.
  __device__ void load_rows(const TensorMap& x_map) const {
    int buffer = 0, parity = 1;
    for (int chunk = begin; chunk < end; ++chunk) {
      if (!is_first(chunk)) continue;
      for (int group = 0; group < kGroups; ++group) {
        uint64_t* const loaded = &barriers->x_loaded[group][buffer];
        wait_for_phase(&barriers->x_used[group][buffer], parity);
        expect_bytes(loaded, kPanels * kPanelBytes);
        for (int panel = 0; panel < kPanels; ++panel) {
          load_tile(x + group * kInputBytes + (buffer * kPanels + panel) * kPanelBytes, x_map,
                    loaded, panel * kPanel, first_row(chunk, group));
        }
      }
      if (++buffer == kBuffers) buffer = 0, parity ^= 1;
    }
  }

  // The place of the sums of a chunk, as a lane sees it.
  struct Place {
    int row;  // of the lane's first row; the second one is 8 further
    int column;
    float factor[2];
  };

  // A warp group that multiplies, 0 or 1.
  __device__ void multiply(int group) const {
    const int thread = static_cast<int>(threadIdx.x) % 128, warp = thread / 32, lane = thread % 32,
              g = lane / 4, t = lane % 4;
    uint32_t sums[kChunk / 2], next[kChunk / 2], words[2][4] = {};
    uint32_t rows[kInRegisters ? kPanels * kPanel / 32 : 1][4];
    for (uint32_t& sum : next) sum = 0;
    for (uint32_t& sum : sums) sum = 0;
    int stage = 0, parity = 0, release = 0, buffer = 0, x_parity = 0;
    const auto give_back = [&] {
      if (lane == 0) arrive(&barriers->used[release]);
      if (++release == kStages) release = 0;
    };
    const auto give_back_rows = [&] {
      if (lane == 0) arrive(&barriers->x_used[group][buffer]);
      if (++buffer == kBuffers) buffer = 0, x_parity ^= 1;
    };
    const char* x_rows = nullptr;
    Place place{numbers.rows, 0, {}}, next_place = place;  // at first, of no row
    uint16_t masks[2] = {};
    Columns columns = columns_of(0, 0, t);
    for (int chunk = begin; chunk < end; ++chunk) {
      next_place.column += kChunk;
      if (chunk == begin || next_place.column >= across * kChunk) {
        next_place.row = first_row(chunk, group) + warp * 16 + g;
        next_place.column = chunk == begin ? chunk % across * kChunk : 0;
        for (int i = 0; i < 2; ++i) masks[i] = mask_of(next_place.row + 8 * i);
        wait_for_phase(&barriers->x_loaded[group][buffer], x_parity);
        x_rows = x + group * kInputBytes + buffer * kPanels * kPanelBytes;
        if constexpr (kInRegisters) {
          const int row = warp * 16 + lane % 16, half = lane / 16 * 16;
#pragma unroll
          for (int k = 0; k < kPanels * kPanel; k += 32) {
            load_matrices(rows[k / 32], x_rows + k / kPanel * kPanelBytes +
                                            swizzled<kPanel>(row, k % kPanel + half));
            keep_registers(rows[k / 32]);
          }
        }
      }
      keep_registers(next);
#pragma unroll
      for (int panel = 0; panel < kPanels; ++panel) {
        wait_for_phase(&barriers->loaded[stage], parity);
        const uint64_t weights =
            matrix_descriptor<kPanel>(shared_address(ring + stage * kStageBytes));
        if (++stage == kStages) stage = 0, parity ^= 1;
        fence_registers();
#pragma unroll
        for (int k = 0; k < kPanel; k += 32) {
          const bool add = panel > 0 || k > 0;
          if constexpr (kInRegisters) {
            begin_products(next, rows[(panel * kPanel + k) / 32], weights + k / 16, add);
          } else {
            const uint64_t a = matrix_descriptor<kPanel>(shared_address(x_rows));
            begin_products(next, a + (panel * kPanelBytes + k) / 16, weights + k / 16, add);
          }
        }
        commit_products();
        if (panel > 0) {
          wait_for_products<1>();
          give_back();
        }
#pragma unroll
        for (int part = 0; part < 4; ++part) {
          if (part * kPanels / 4 != panel) continue;
          // Reads of shared memory wait behind those of the tensor cores, so they begin a part
          // early.
          const Columns following = part < 3 ? columns_of(part + 1, place.column, t)
                                             : columns_of(0, next_place.column, t);
          finish(sums, part, columns, place, t, words);
          columns = following;
        }
      }
      wait_for_products<0>();
      keep_registers(next);
      give_back();
      // Products that have ended have their inputs. Loads of fragments may wait behind the products
      // of the other warp group for long.
      if (kInRegisters ? is_first(chunk) : chunk + 1 == end || is_first(chunk + 1))
        give_back_rows();
      for (int i = 0; i < kChunk / 2; ++i) sums[i] = next[i];
      place = next_place;
      for (int i = 0; i < 2; ++i) place.factor[i] = factor_of(masks[i]);
    }
#pragma unroll
    for (int part = 0; part < 4; ++part) {
      finish(sums, part, columns_of(part, place.column, t), place, t, words);
    }
  }

  // The bits of the mask of a row.
  __device__ uint16_t mask_of(int row) const {
    if (numbers.mask == nullptr || row >= numbers.rows) return 0;
    return static_cast<const uint16_t*>(numbers.mask)[row];
  }
  // What GELU and the mask multiply by; other activations have the factor of the result on its own,
  // so that each product is rounded as the plain kernel rounds it.
  static constexpr bool kOwnFactor = kQuantized && kActivation != Activation::kGelu;
  __device__ float factor_of(uint16_t mask) const {
    const float factor = kQuantized && !kOwnFactor ? numbers.factor : 1;
    if (numbers.mask == nullptr) return factor;
    return factor * (numbers.type == DataType::kBFloat16 ? widen(bits<__nv_bfloat16>(mask))
                                                         : widen(bits<__half>(mask)));
  }

  // A chunk has four parts: 8 columns of two rows of each lane. Returns the first column of the 16
  // bytes in which a part is.
  __device__ static int column_of(int part, int t) {
    return 8 * part / kLaneColumns * kGroupColumns + kLaneColumns * t;
  }

  // The scales and biases of a part.
  struct Columns {
    float4 scale[2], bias[2];
  };
  __device__ Columns columns_of(int part, int column, int t) const {
    const int place = number_place(column + column_of(part, t) + 8 * part % kLaneColumns);
    const auto* const scale = reinterpret_cast<const float4*>(scales + place);
    const auto* const bias = reinterpret_cast<const float4*>(biases + place);
    return {{scale[0], scale[1]}, {bias[0], bias[1]}};
  }

  // Computes a part of the results of a chunk, and stores it once there are 16 bytes of a row.
  __device__ void finish(const uint32_t (&sums)[kChunk / 2], int part, const Columns& columns,
                         const Place& place, int t, uint32_t (&words)[2][4]) const {
    const int column = place.column + column_of(part, t);
    const bool whole = 8 * (part + 1) % kLaneColumns == 0;
#pragma unroll
    for (int row = 0; row < 2; ++row) {
      const float factor = place.factor[row];
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const float4 scale = columns.scale[i], bias = columns.bias[i];
        const int first = 4 * (4 * part + 2 * i) + 2 * row;
        const auto finished = [&](int k, float multiplier, float summand) {
          const float sum = static_cast<float>(static_cast<int>(sums[first + k]));
          float y = fmaf(sum, multiplier, summand);
          if constexpr (kActivation == Activation::kGelu) y = fast_gelu(y);
          if constexpr (kActivation == Activation::kRelu) y = y < 0 ? 0.f : y;
          y *= factor;
          return kOwnFactor ? y * numbers.factor : y;
        };
        const float a = finished(0, scale.x, bias.x), b = finished(1, scale.y, bias.y),
                    c = finished(4, scale.z, bias.z), d = finished(5, scale.w, bias.w);
        if constexpr (kQuantized) {
          words[row][2 * (part % 2) + i] = quantize_four(a, b, c, d);
        } else {
          words[row][2 * i] = pack<Out>(a, b);
          words[row][2 * i + 1] = pack<Out>(c, d);
        }
      }
      const int at = place.row + 8 * row;
      if (whole && at < numbers.rows && column < numbers.outputs) {
        const int64_t index = static_cast<int64_t>(at) * numbers.outputs + column;
        *reinterpret_cast<uint4*>(static_cast<Out*>(numbers.output) + index) =
            uint4{words[row][0], words[row][1], words[row][2], words[row][3]};
      }
    }
  }
};

template <typename Out, int kPanels, Activation kActivation>
__global__ void __launch_bounds__(QuantizedLinearRowsSizes::kThreads, 1)
    quantized_linear_rows_kernel(const __grid_constant__ TensorMap x,
                                 const __grid_constant__ TensorMap weight,
                                 const __grid_constant__ QuantizedLinearRowsNumbers numbers) {
  const QuantizedLinearRows<Out, kPanels, kActivation> own(dynamic_shared(), numbers);
  own.init();
  begin_next_kernel();
  const int group = __shfl_sync(kFullMask, static_cast<int>(threadIdx.x) / 128, 0);
  if (group == 2) {
    give_registers<QuantizedLinearRowsSizes::kLoadRegisters>();
    const int thread = static_cast<int>(threadIdx.x) % 128;
    if (thread == 0) own.load_weights(weight);
    if (thread == 32) own.load_rows(x);
  } else {
    take_registers<QuantizedLinearRowsSizes::kMultiplyRegisters>();
    own.multiply(group);
  }
}

template <typename Out, int kPanels, Activation kActivation>
cudaError_t launch_quantized_linear_rows(const QuantizedLinearProblem& problem,
                                         const QuantizedLinearArguments& arguments,
                                         cudaStream_t stream) {
  using Sizes = QuantizedLinearRows<Out, kPanels, kActivation>;
  const int64_t m = problem.rows, n = problem.outputs, k = problem.inputs;
  TensorMap x, weight;
  cudaError_t status =
      make_map<2>(x, 1, arguments.x, {k, m}, {k}, {Sizes::kPanel, Sizes::kRows}, Sizes::kPanel);
  if (status == cudaSuccess) {
    status = make_lane_map(weight, 1, arguments.weight, n, k, Sizes::kLaneColumns, Sizes::kChunk,
                           Sizes::kPanel);
  }
  if (status != cudaSuccess) return status;
  const QuantizedLinearRowsNumbers numbers{static_cast<const float*>(arguments.scale),
                                           static_cast<const float*>(arguments.bias),
                                           arguments.mask,
                                           arguments.output,
                                           static_cast<int>(m),
                                           static_cast<int>(n),
                                           problem.type,
                                           1 / problem.output_scale};
  constexpr int64_t kChunkRows = Sizes::kGroups * Sizes::kRows;
  const int64_t chunks =
      (m + kChunkRows - 1) / kChunkRows * ((n + Sizes::kChunk - 1) / Sizes::kChunk);
  return launch_persistent(quantized_linear_rows_kernel<Out, kPanels, kActivation>, chunks,
                           Sizes::kThreads, Sizes::kSharedBytes, stream, x, weight, numbers);
}

// Runs a problem that "rows" can run.
template <typename Out>
cudaError_t run_quantized_linear_rows(const QuantizedLinearProblem& problem,
                                      const QuantizedLinearArguments& arguments,
                                      cudaStream_t stream) {
  constexpr auto kNone = static_cast<int>(Activation::kNone),
                 kGelu = static_cast<int>(Activation::kGelu),
                 kRelu = static_cast<int>(Activation::kRelu);
  return with_constant<1, 2, 3, 4, 6>(rows_panels(problem), [&](auto panels) {
    constexpr int kPanels = decltype(panels)::value;
    const auto activation = static_cast<int>(problem.activation);
    return with_constant<kNone, kGelu, kRelu>(activation, [&](auto constant) {
      constexpr auto kActivation = static_cast<Activation>(decltype(constant)::value);
      return launch_quantized_linear_rows<Out, kPanels, kActivation>(problem, arguments, stream);
    });
  });
}

}  // namespace msda
