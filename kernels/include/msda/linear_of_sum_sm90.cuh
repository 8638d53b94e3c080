// Linear layers of a sum: "hopper" of linear_of_sum_choice.h, for compute capability 9.0.
//
// Problem   that of linear_of_sum_plain.cuh in half or bfloat16, for K a multiple of 8 up to 256,
//           and N a multiple of 32 up to 512
// Threads   Persistent blocks of three warp groups. Two multiply. Of the third, one thread loads
//           weights and the rows of the first warp group, another one those of the second, by TMA.
// Work      A block has the weights of up to 256 columns for its whole life. Blocks of all columns
//           take the same tiles of 64 rows at about the same time, so that the second reads them
//           from L2. The two warp groups of a block take its tiles in turn.
// Sums      A lane loads fragments of x and of the addend, and adds them in 16 bits. The sums go to
//           the tensor cores from registers, so that no tile of them is stored anywhere.
// Columns   Lane 4 g + t gets columns 8 v + 2 t and + 1 of the tensor cores' sums. The order of the
//           columns of a product is free, so TMA loads the rows of the weight in the order that
//           gives a lane 8 consecutive numbers of the result.
// Memory    128 KB of weights, and a ring of stages for each warp group that multiplies. A stage
//           has 64 columns of a tile of x and of the addend. No work memory.
// Limits    those of check() and can_run(). Deterministic: a fixed order of sums.
#pragma once

#include "msda/cuda_launch.cuh"
#include "msda/hopper.cuh"
#include "msda/linear_of_sum_choice.h"
#include "msda/vector.cuh"

namespace msda {

struct LinearOfSumNumbers {
  const void* bias;
  void* output;
  int rows;
  int outputs;
};

struct LinearOfSumSizes {
  static constexpr int kRows = 64;  // of a tile
  static constexpr int kGroups = 2;
  static constexpr int kColumns = 256;  // of a block
  static constexpr int kThreads = 384;
  // Of the 168 that each thread begins with, the loading warp gives to those that multiply.
  static constexpr int kLoadRegisters = 24, kMultiplyRegisters = 240;
  static constexpr int kPanel = 128;                      // bytes of a row of a panel
  static constexpr int kPanelColumns = kPanel / 2;        // numbers
  static constexpr int kPanelBytes = kRows * kPanel;      // of x and of the addend
  static constexpr int kWeightBytes = kColumns * kPanel;  // of a panel
  static constexpr int kStageBytes = 2 * kPanelBytes;     // a panel of x, one of the addend
  static constexpr int kStages = 3;                       // of a warp group
  static constexpr int kLaneColumns = 8;                  // consecutive ones
  static constexpr int kGroupColumns = 4 * kLaneColumns;  // of the lanes of a quad
  static constexpr int kBarrierBytes = 128;
  static constexpr int kAlignment = 1024;  // of tiles, with swizzle
  static constexpr int kMostPanels = 4;
  static constexpr int kSharedBytes = kAlignment + kMostPanels * kWeightBytes +
                                      kGroups * kStages * kStageBytes + kColumns * 4 +
                                      kBarrierBytes;
  static_assert(kSharedBytes <= 232448);
  static_assert(kMostPanels * kPanelColumns == kHopperMostInputs);
  static_assert(kGroupColumns == kHopperOutputs);
};

// T is __half or __nv_bfloat16. A row has kPanels panels, the last one filled with zeros.
template <typename T, int kPanels>
struct LinearOfSum : LinearOfSumSizes {
  struct Barriers {
    uint64_t weights;
    uint64_t loaded[kGroups][kStages], used[kGroups][kStages];
  };
  static_assert(sizeof(Barriers) <= kBarrierBytes);
  static constexpr int kSteps = kPanelColumns / 16;  // products of a panel

  char* weights;
  char* ring;
  float* biases;
  Barriers* barriers;
  const LinearOfSumNumbers& numbers;
  int column;             // the first of this block
  int tile, step, tiles;  // the first tile, from one to the next, and their end

  __device__ LinearOfSum(char* shared, const LinearOfSumNumbers& all) : numbers(all) {
    shared += (kAlignment - shared_address(shared) % kAlignment) % kAlignment;
    weights = shared;
    ring = weights + kMostPanels * kWeightBytes;
    biases = reinterpret_cast<float*>(ring + kGroups * kStages * kStageBytes);
    barriers = reinterpret_cast<Barriers*>(biases + kColumns);
    const int across = (all.outputs + kColumns - 1) / kColumns;
    column = static_cast<int>(blockIdx.x) % across * kColumns;
    tile = static_cast<int>(blockIdx.x) / across;
    step = static_cast<int>(gridDim.x) / across;
    tiles = tile < step ? (all.rows + kRows - 1) / kRows : 0;  // an odd block has none
  }

  __device__ void init() const {
    if (threadIdx.x == 0) {
      init_barrier(&barriers->weights, 1);
      for (int group = 0; group < kGroups; ++group) {
        for (int i = 0; i < kStages; ++i) {
          init_barrier(&barriers->loaded[group][i], 1);
          init_barrier(&barriers->used[group][i], 4);
        }
      }
      publish_barriers();
    }
    wait_for_last_kernel();
    for (int i = static_cast<int>(threadIdx.x); i < kColumns; i += kThreads) {
      const bool inside = column + i < numbers.outputs;
      biases[i] = inside ? widen(static_cast<const T*>(numbers.bias)[column + i]) : 0;
    }
    __syncthreads();
  }

  // One thread: loads the weights.
  __device__ void load_weights(const TensorMap& weight) const {
    expect_bytes(&barriers->weights, kPanels * kWeightBytes);
    for (int panel = 0; panel < kPanels; ++panel) {
      const int at[5] = {panel * kPanelColumns, 0, 0, 0, column / kGroupColumns};
      load_tile(weights + panel * kWeightBytes, weight, &barriers->weights, at);
    }
  }

  // One thread: loads the tiles of a warp group.
  __device__ void load_rows(int group, const TensorMap& x, const TensorMap& addend) const {
    int stage = 0, parity = 1;
    for (int i = tile + group * step; i < tiles; i += kGroups * step) {
      for (int panel = 0; panel < kPanels; ++panel) {
        uint64_t* const loaded = &barriers->loaded[group][stage];
        wait_for_phase(&barriers->used[group][stage], parity);
        expect_bytes(loaded, kStageBytes);
        char* const to = ring + (group * kStages + stage) * kStageBytes;
        load_tile(to, x, loaded, panel * kPanelColumns, i * kRows);
        load_tile(to + kPanelBytes, addend, loaded, panel * kPanelColumns, i * kRows);
        if (++stage == kStages) stage = 0, parity ^= 1;
      }
    }
  }

  // A warp group that multiplies, 0 or 1.
  __device__ void multiply(int group) const {
    const int warp = static_cast<int>(threadIdx.x) % 128 / 32,
              lane = static_cast<int>(threadIdx.x) % 32, g = lane / 4, t = lane % 4;
    const Packed<T> one = bits<Packed<T>>(pack<T>(1, 1));
    float sums[kColumns / 2];
    uint32_t inputs[kPanels][kSteps][4];
    int stage = 0, parity = 0;
    wait_for_phase(&barriers->weights, 0);
    for (int i = tile + group * step; i < tiles; i += kGroups * step) {
      for (float& sum : sums) sum = 0;  // products read it, though they ignore it at first
      keep_registers(sums);
#pragma unroll
      for (int panel = 0; panel < kPanels; ++panel) {
        wait_for_phase(&barriers->loaded[group][stage], parity);
        const char* const x = ring + (group * kStages + stage) * kStageBytes;
        const int row = warp * 16 + lane % 16, side = lane / 16 * 16;
#pragma unroll
        for (int k = 0; k < kSteps; ++k) {
          const int place = swizzled<kPanel>(row, k * 32 + side);
          uint32_t addend[4];
          load_matrices(inputs[panel][k], x + place);
          load_matrices(addend, x + kPanelBytes + place);
#pragma unroll
          for (int j = 0; j < 4; ++j) {
            inputs[panel][k][j] = bits<uint32_t>(multiply_add_pairs(
                bits<Packed<T>>(inputs[panel][k][j]), one, bits<Packed<T>>(addend[j])));
          }
          keep_registers(inputs[panel][k]);
        }
        fence_registers();
        const uint64_t b =
            matrix_descriptor<kPanel>(shared_address(weights + panel * kWeightBytes));
#pragma unroll
        for (int k = 0; k < kSteps; ++k) {
          begin_products<T>(sums, inputs[panel][k], b + k * 32 / 16, panel > 0 || k > 0);
        }
        commit_products();
        // Loads of fragments wait behind the products of the other warp group. Products that have
        // begun have their inputs, so the loads have ended.
        if (lane == 0) arrive(&barriers->used[group][stage]);
        if (++stage == kStages) stage = 0, parity ^= 1;
      }
      wait_for_products<0>();
      keep_registers(sums);
      store(sums, i * kRows + warp * 16 + g, t);
    }
  }

  // Adds the bias, and stores rows `row` and row + 8.
  __device__ void store(const float (&sums)[kColumns / 2], int row, int t) const {
#pragma unroll
    for (int group = 0; group < kColumns / kGroupColumns; ++group) {
      const int first = group * kGroupColumns + kLaneColumns * t;
      if (column + first >= numbers.outputs) break;
      const auto* const bias = reinterpret_cast<const float4*>(biases + first);
      const float4 low = bias[0], high = bias[1];
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const float* const own = sums + 16 * group + 2 * half;  // pairs, each 4 further
        const uint4 words{
            pack<T>(own[0] + low.x, own[1] + low.y), pack<T>(own[4] + low.z, own[5] + low.w),
            pack<T>(own[8] + high.x, own[9] + high.y), pack<T>(own[12] + high.z, own[13] + high.w)};
        if (row + 8 * half >= numbers.rows) continue;
        const int64_t at = static_cast<int64_t>(row + 8 * half) * numbers.outputs + column + first;
        *reinterpret_cast<uint4*>(static_cast<T*>(numbers.output) + at) = words;
      }
    }
  }
};

template <typename T, int kPanels>
__global__ void __launch_bounds__(LinearOfSumSizes::kThreads, 1)
    linear_of_sum_hopper_kernel(const __grid_constant__ TensorMap x,
                                const __grid_constant__ TensorMap addend,
                                const __grid_constant__ TensorMap weight,
                                const __grid_constant__ LinearOfSumNumbers numbers) {
  const LinearOfSum<T, kPanels> own(dynamic_shared(), numbers);
  own.init();
  begin_next_kernel();
  const int group = __shfl_sync(kFullMask, static_cast<int>(threadIdx.x) / 128, 0);
  if (group == 2) {
    give_registers<LinearOfSumSizes::kLoadRegisters>();
    const int thread = static_cast<int>(threadIdx.x) % 128;
    if (thread == 0) {
      own.load_weights(weight);
      own.load_rows(0, x, addend);
    }
    if (thread == 32) own.load_rows(1, x, addend);
  } else {
    take_registers<LinearOfSumSizes::kMultiplyRegisters>();
    own.multiply(group);
  }
}

template <typename T>
cudaError_t launch_linear_of_sum_hopper(const LinearOfSumProblem& problem,
                                        const LinearOfSumArguments& arguments,
                                        cudaStream_t stream) {
  using Sizes = LinearOfSumSizes;
  const int64_t m = problem.rows, k = problem.inputs, n = problem.outputs;
  cudaError_t status = cudaSuccess;
  const auto make = [&](TensorMap& map, const void* data) {
    if (status != cudaSuccess) return;
    status = make_map<2>(map, 2, data, {k, m}, {2 * k}, {Sizes::kPanelColumns, Sizes::kRows},
                         Sizes::kPanel);
  };
  TensorMap x, addend, weight;
  make(x, arguments.x);
  make(addend, arguments.addend);
  if (status == cudaSuccess) {
    status = make_lane_map(weight, 2, arguments.weight, n, k, Sizes::kLaneColumns, Sizes::kColumns,
                           Sizes::kPanel);
  }
  if (status != cudaSuccess) return status;
  const LinearOfSumNumbers numbers{arguments.bias, arguments.output, static_cast<int>(m),
                                   static_cast<int>(n)};
  const int64_t across = (n + Sizes::kColumns - 1) / Sizes::kColumns;
  const int64_t tiles = (m + Sizes::kRows - 1) / Sizes::kRows;
  const int64_t panels = (k + Sizes::kPanelColumns - 1) / Sizes::kPanelColumns;
  return with_constant<1, 2, 3, 4>(panels, [&](auto constant) {
    return launch_persistent(linear_of_sum_hopper_kernel<T, decltype(constant)::value>,
                             tiles * across, Sizes::kThreads, Sizes::kSharedBytes, stream, x,
                             addend, weight, numbers);
  });
}

}  // namespace msda
