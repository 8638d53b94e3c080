// Window attention on tensor cores: "tensor_core" of window_choice.h.
//
// Problem   that of window_plain.cuh, for half and bfloat16. Logits, softmax and sums are float;
//           the weights are rounded to T before they meet the values.
// Blocks    A block serves one head. It reads the head's bias into shared memory once, and goes
//           from window to window. Each team of its warps takes one window at a time; the next
//           window's q, k and v come by asynchronous copies meanwhile.
// Warps     A warp has kTiles tiles of 16 query rows and takes kKeys keys in a step: their logits
//           become weights, and these the first factor of the product with v, in registers. So k
//           and v leave shared memory once for kTiles tiles.
// Softmax   relative to the maximum of the first step, while no lane's weights of a step add up to
//           more than kMostWeight, which T can hold. Else the warp raises the maximum, scales the
//           earlier sums, and makes the weights again. So most steps need no maximum.
// Shared    rows of q, k and v with their chunks of 16 bytes permuted (chunk_of()), rows of the
//           bias 16 bytes apart, so that no eight rows of a matrix share a bank.
// Traffic   qkv once, past L1, and the output once. A head's bias once for each of its blocks.
// Registers sm_90, for 16, 32 and 64 channels, no spills:
//             7 x 7     124 127 122   256 threads, 49, 89 and 89 KB of shared memory, 2 blocks
//             8 x 8     128 124 117   the same
//             12 x 12   125 166 148   384, 384 and 288 threads, 133, 223 and 133 KB, 1 block
//             16 x 16   158 190 128   256, 256 and 512 threads, 172, 212 and 160 KB, 1 block
// Limits    those of window_choice.h. A GPU with less shared memory runs fewer teams; where none
//           fits, the plain kernel runs. Deterministic.
#pragma once

#include <algorithm>

#include "msda/cuda_launch.cuh"
#include "msda/tensor_core.cuh"
#include "msda/window_cells.cuh"

namespace msda {

// What a kernel is compiled for, and its place in a block.
template <typename T_, int kWindow_, int kHeadDim_>
struct WindowConfig {
  using T = T_;
  static constexpr int kWindow = kWindow_;
  static constexpr int kHeadDim = kHeadDim_;
  static constexpr int kCells = kWindow * kWindow;       // L
  static constexpr int kRows = (kCells + 15) / 16 * 16;  // with rows that fill the last tile
  static constexpr bool kWide = kHeadDim == 64;          // registers hold one tile only
  static constexpr int kTiles = kWide ? 1 : kWindow == 12 ? 3 : 2;
  // Of a step: the most keys whose weights leave registers for everything else.
  static constexpr int kKeys = [] {
    if (kWindow == 12) return kWide ? 48 : 16;
    const bool few = (kWindow == 8 && kHeadDim == 32) || (kWindow == 16 && kWide);
    return few ? 16 : 64;
  }();
  static constexpr int kWarps = kRows / 16 / kTiles;  // of a team
  static constexpr int kTeams = kWindow == 16 ? 1 : kWindow == 12 ? (kWide ? 1 : 4) : 8 / kWarps;
  static constexpr int kThreads = kTeams * kWarps * 32;
  static constexpr int kBlocks = kWindow < 12 ? 2 : 1;  // of a multiprocessor

  // Bytes of shared memory. The bias of the largest form does not fit: lanes read it from L2.
  static constexpr bool kSharedBias = !(kWindow == 16 && kWide);
  static constexpr int kBiasRow = 2 * kRows + 16;
  static constexpr int kBiasBytes = kSharedBias ? kRows * kBiasRow : 0;
  static constexpr int kRow = 2 * kHeadDim;
  static constexpr int kMatrix = kRows * kRow;    // q, k or v of a window
  static constexpr int kTeamBytes = 5 * kMatrix;  // q, and k and v of two windows
  static constexpr int shared_bytes(int teams) { return kBiasBytes + teams * kTeamBytes; }

  static_assert(kRows % kKeys == 0 && kKeys % 16 == 0 && kRows % (16 * kTiles) == 0);
};

// Where a 16-byte chunk of a row of kHeadDim channels is. Eight rows from a multiple of 8 on have
// the same chunk in eight different parts of 128 bytes.
template <int kHeadDim>
__device__ __forceinline__ int chunk_of(int row, int chunk) {
  constexpr int kChunks = kHeadDim / 8;
  return row * kHeadDim * 2 + ((chunk ^ (row / (8 / kChunks))) % kChunks) * 16;
}

// One warp of a team.
template <typename Config>
class WindowWarp {
 public:
  using T = typename Config::T;
  static constexpr int kTiles = Config::kTiles;
  static constexpr int kDepth = Config::kHeadDim / 16;  // products of 16 channels
  static constexpr int kPairs = Config::kKeys / 16;     // of 8 keys, in a step
  static constexpr float kMostWeight = 4096;

  __device__ __forceinline__ WindowWarp(const WindowMap& map, const WindowArguments& arguments,
                                        int num_heads, int head, int warp, const char* bias,
                                        char* team)
      : map_(map),
        arguments_(arguments),
        channels_(num_heads * Config::kHeadDim),
        head_(head),
        first_row_(warp * 16 * kTiles),
        lane_(static_cast<int>(threadIdx.x) % 32),
        bias_(bias),
        team_(team) {}

  // A window's cells, numbered in [N, H, W], in the warp's rows: lane i holds those of rows i and
  // i + 32.
  struct Cells {
    static constexpr int kPadding = -1;  // in the map's padding
    static constexpr int kNone = -2;     // beyond the window
    int cell[(16 * kTiles + 31) / 32];
    int row_split, column_split;  // of the window
  };

  __device__ __forceinline__ Cells find(int number) const {
    const Window window = map_.window(number);
    Cells cells;
    cells.row_split = window.row_split;
    cells.column_split = window.column_split;
#pragma unroll
    for (int i = 0; i < (16 * kTiles + 31) / 32; ++i) {
      const int row = first_row_ + 32 * i + no_hoist(lane_);
      const int64_t cell = map_.cell(window, row / Config::kWindow, row % Config::kWindow);
      cells.cell[i] = row < Config::kCells ? static_cast<int>(cell) : Cells::kNone;
    }
    return cells;
  }

  // Begins to copy the warp's rows of q, and of k and v into one of two buffers.
  __device__ __forceinline__ void begin_load(const Cells& cells, int buffer) const {
    constexpr int kChunks = Config::kHeadDim / 8;
    const int lane = no_hoist(lane_);
    const int chunk = lane % kChunks;
    const int channel = head_ * Config::kHeadDim + chunk * 8;
    const T* const qkv = static_cast<const T*>(arguments_.qkv) + channel;
    const bool zeros = arguments_.padding == nullptr;
    const T* const padding = zeros ? qkv : static_cast<const T*>(arguments_.padding) + channel;
    char* const queries = team_ + first_row_ * Config::kRow;
    char* const keys = queries + (1 + 2 * buffer) * Config::kMatrix;
#pragma unroll
    for (int i = 0; i < 16 * kTiles; i += 32 / kChunks) {
      // All lanes name the same register of Cells: i is a multiple of 32 / kChunks, which
      // divides 32.
      const int cell = __shfl_sync(kFullMask, cells.cell[i / 32], i % 32 + lane / kChunks);
      const char* const q =
          cell >= 0 ? multiply_add_address(reinterpret_cast<const char*>(qkv), cell, 6 * channels_)
                    : reinterpret_cast<const char*>(padding);
      const bool read = cell >= 0 || (cell == Cells::kPadding && !zeros);
      const int place =
          i / 8 * 8 * Config::kRow + chunk_of<Config::kHeadDim>(i % 8 + lane / kChunks, chunk);
      copy_async(queries + place, q, read);
      copy_async(keys + place, q + 2 * channels_, read);
      copy_async(keys + Config::kMatrix + place, q + 4 * channels_, read);
    }
  }

  // Reads the warp's queries, so that the next window's can be copied over them.
  __device__ __forceinline__ void take_queries() {
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile) {
#pragma unroll
      for (int depth = 0; depth < kDepth; ++depth) {
        load_matrices(query_[tile][depth],
                      team_ + (first_row_ + 16 * tile) * Config::kRow +
                          chunk_of<Config::kHeadDim>(lane_ % 16, 2 * depth + lane_ / 16));
      }
    }
  }

  // Attends in a window whose keys and values are in a buffer, and writes the result.
  __device__ __forceinline__ void attend(const Cells& cells, int buffer) {
    const bool masked = cells.row_split < Config::kWindow || cells.column_split < Config::kWindow;
    const char* const keys = team_ + (1 + 2 * buffer) * Config::kMatrix;
    float largest[kTiles][2], total[kTiles][2], sums[kTiles][2 * kDepth][4];
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        largest[tile][half] = -1e30f;  // not -infinity, which a logit may be
        total[tile][half] = 0;
      }
#pragma unroll
      for (int i = 0; i < 2 * kDepth; ++i) {
#pragma unroll
        for (int j = 0; j < 4; ++j) sums[tile][i][j] = 0;
      }
    }
#pragma unroll 1
    for (int first_key = 0; first_key < Config::kRows; first_key += Config::kKeys) {
      uint32_t weights[kTiles][kPairs][4];
      float more[kTiles][2];
      bool raise = first_key == 0;
      while (true) {
        if (raise) raise_largest(cells, masked, keys, first_key, largest, total, sums);
        // Two loops of products, because a branch within would keep nvcc from interleaving them.
        const bool small =
            masked ? make_weights<true>(weights, more, cells, keys, first_key, largest)
                   : make_weights<false>(weights, more, cells, keys, first_key, largest);
        if (raise || __all_sync(kFullMask, small)) break;
        raise = true;
      }
#pragma unroll
      for (int tile = 0; tile < kTiles; ++tile) {
        total[tile][0] += more[tile][0];
        total[tile][1] += more[tile][1];
      }
      add_values(weights, keys + Config::kMatrix, first_key, sums);
    }
    write(cells, total, sums);
  }

 private:
  using Logits = float[kTiles][2][4];  // of 16 keys
  using Weights = uint32_t[kTiles][kPairs][4];
  using Rows = float[kTiles][2];  // a number for each of the lane's rows
  using Sums = float[kTiles][2 * kDepth][4];

  // The first of a lane's rows in a tile; the second is 8 further.
  __device__ __forceinline__ int row(int lane, int tile) const {
    return first_row_ + 16 * tile + lane / 4;
  }
  // The first of a lane's two columns in 8.
  static __device__ __forceinline__ int column(int lane) { return lane % 4 * 2; }

  // logits = q k^T / sqrt(d) + bias, and the mask, of 16 keys
  __device__ __forceinline__ void make_logits(Logits& logits, const Cells& cells, bool masked,
                                              const char* keys, int key) const {
    constexpr float kScale = Config::kHeadDim == 16   ? 0.25f
                             : Config::kHeadDim == 64 ? 0.125f
                                                      : 0.17677669529663687f;
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile) {
#pragma unroll
      for (int i = 0; i < 4; ++i) logits[tile][0][i] = logits[tile][1][i] = 0;
    }
#pragma unroll
    for (int depth = 0; depth < kDepth; ++depth) {
      uint32_t words[4];
      const int lane_row = lane_ / 16 * 8 + lane_ % 8;
      load_matrices(words, keys + key * Config::kRow +
                               chunk_of<Config::kHeadDim>(lane_row, 2 * depth + lane_ / 8 % 2));
#pragma unroll
      for (int tile = 0; tile < kTiles; ++tile) {
        multiply_accumulate<T>(logits[tile][0], query_[tile][depth], words[0], words[1]);
        multiply_accumulate<T>(logits[tile][1], query_[tile][depth], words[2], words[3]);
      }
    }
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile) {
      uint32_t words[4];
      read_bias(words, tile, key);
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float2 two = unpack(bits<Packed<T>>(words[i]));
        float(&four)[4] = logits[tile][i / 2];
        four[i % 2 * 2] = four[i % 2 * 2] * kScale + two.x;
        four[i % 2 * 2 + 1] = four[i % 2 * 2 + 1] * kScale + two.y;
      }
    }
    if (masked) mask(logits, cells, key);
  }

  // The bias of a tile and 16 keys: rows g and g + 8 of the first 8 keys, then of the others.
  __device__ __forceinline__ void read_bias(uint32_t (&words)[4], int tile, int key) const {
    if constexpr (Config::kSharedBias) {
      const int bias_row = first_row_ + 16 * tile + lane_ % 16;
      load_matrices(words, bias_ + bias_row * Config::kBiasRow + key * 2 + lane_ / 16 * 16);
    } else {
      const T* const bias = static_cast<const T*>(arguments_.bias) +
                            static_cast<int64_t>(head_) * Config::kCells * Config::kCells;
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const T* const address = bias + (row(lane_, tile) + i % 2 * 8) * Config::kCells + key +
                                 i / 2 * 8 + column(lane_);
        words[i] = __ldg(reinterpret_cast<const uint32_t*>(address));
      }
    }
  }

  // Adds the mask between cells of several regions.
  __device__ __forceinline__ void mask(Logits& logits, const Cells& cells, int first_key) const {
    const int lane = no_hoist(lane_);
    const auto region = [&](int cell) {
      return region_of(cell / Config::kWindow, cell % Config::kWindow, cells.row_split,
                       cells.column_split);
    };
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int key = first_key + 8 * i + column(lane);
      const int regions[2] = {region(key), region(key + 1)};
#pragma unroll
      for (int tile = 0; tile < kTiles; ++tile) {
#pragma unroll
        for (int j = 0; j < 4; ++j) {
          const bool apart = region(row(lane, tile) + j / 2 * 8) != regions[j % 2];
          if (apart) logits[tile][i][j] += kWindowMask;
        }
      }
    }
  }

  // Raises the maxima, in units of log2, to those of a step. In the first step all sums are zero.
  __device__ __forceinline__ void raise_largest(const Cells& cells, bool masked, const char* keys,
                                                int first_key, Rows& largest, Rows& total,
                                                Sums& sums) const {
    float most[kTiles][2];
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile) most[tile][0] = most[tile][1] = -INFINITY;
#pragma unroll 1
    for (int key = first_key; key < first_key + Config::kKeys; key += 16) {
      Logits logits;
      make_logits(logits, cells, masked, keys, key);
#pragma unroll
      for (int tile = 0; tile < kTiles; ++tile) {
#pragma unroll
        for (int j = 0; j < 4; ++j) {
          float& x = most[tile][j / 2];
          x = fmaxf(x, fmaxf(logits[tile][0][j], logits[tile][1][j]));
        }
      }
    }
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const float raised =
            fmaxf(max_over_group(most[tile][half], 4) * kLog2E, largest[tile][half]);
        const float fade = exp2_approx(largest[tile][half] - raised);
        largest[tile][half] = raised;
        if (first_key == 0) continue;
        total[tile][half] *= fade;
#pragma unroll
        for (int i = 0; i < 2 * kDepth; ++i) {
          sums[tile][i][2 * half] *= fade;
          sums[tile][i][2 * half + 1] *= fade;
        }
      }
    }
  }

  // Makes the weights of a step, relative to the maxima, and adds up the lane's in `more`. Returns
  // whether they are small enough for T.
  template <bool kMasked>
  __device__ __forceinline__ bool make_weights(Weights& weights, Rows& more, const Cells& cells,
                                               const char* keys, int first_key,
                                               const Rows& largest) const {
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile) more[tile][0] = more[tile][1] = 0;
#pragma unroll
    for (int pair = 0; pair < kPairs; ++pair) {
      Logits logits;
      make_logits(logits, cells, kMasked, keys, first_key + 16 * pair);
#pragma unroll
      for (int tile = 0; tile < kTiles; ++tile) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          float two[2];
#pragma unroll
          for (int j = 0; j < 2; ++j) {
            two[j] =
                exp2_approx(logits[tile][i / 2][i % 2 * 2 + j] * kLog2E - largest[tile][i % 2]);
            more[tile][i % 2] += two[j];
          }
          weights[tile][pair][i] = pack<T>(two[0], two[1]);
        }
      }
    }
    float most = 0;
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile)
      most = fmaxf(most, fmaxf(more[tile][0], more[tile][1]));
    return most <= kMostWeight;
  }

  // sums += weights * v
  __device__ __forceinline__ void add_values(const Weights& weights, const char* values,
                                             int first_key, Sums& sums) const {
#pragma unroll
    for (int pair = 0; pair < kPairs; ++pair) {
#pragma unroll
      for (int depth = 0; depth < kDepth; ++depth) {
        uint32_t words[4];
        load_transposed(words, values + (first_key + 16 * pair) * Config::kRow +
                                   chunk_of<Config::kHeadDim>(lane_ % 16, 2 * depth + lane_ / 16));
#pragma unroll
        for (int tile = 0; tile < kTiles; ++tile) {
          multiply_accumulate<T>(sums[tile][2 * depth], weights[tile][pair], words[0], words[1]);
          multiply_accumulate<T>(sums[tile][2 * depth + 1], weights[tile][pair], words[2],
                                 words[3]);
        }
      }
    }
  }

  // Divides by the sum of the weights. Two lanes exchange words, so that each stores 8 bytes.
  __device__ __forceinline__ void write(const Cells& cells, const Rows& total,
                                        const Sums& sums) const {
    const int lane = no_hoist(lane_);
    const bool odd = lane % 2 == 1;
    const int channel = head_ * Config::kHeadDim + lane % 4 / 2 * 4 + (odd ? 8 : 0);
    T* const output = static_cast<T*>(arguments_.output) + channel;
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const float scale = __fdividef(1.0f, sum_over_group(total[tile][half], 4));
        const int cell =
            __shfl_sync(kFullMask, cells.cell[tile / 2], tile % 2 * 16 + 8 * half + lane / 4);
        T* const address = output + static_cast<int64_t>(cell) * channels_;
#pragma unroll
        for (int depth = 0; depth < kDepth; ++depth) {
          uint32_t words[2];
#pragma unroll
          for (int i = 0; i < 2; ++i) {
            const float(&four)[4] = sums[tile][2 * depth + i];
            words[i] = pack<T>(four[2 * half] * scale, four[2 * half + 1] * scale);
          }
          const uint32_t other = __shfl_xor_sync(kFullMask, odd ? words[0] : words[1], 1);
          const uint2 joined = odd ? make_uint2(other, words[1]) : make_uint2(words[0], other);
          if (cell >= 0) *reinterpret_cast<uint2*>(address + 16 * depth) = joined;
        }
      }
    }
  }

  const WindowMap& map_;
  const WindowArguments& arguments_;
  const int channels_, head_, first_row_, lane_;
  const char* const bias_;
  char* const team_;
  uint32_t query_[kTiles][kDepth][4];
};

// Copies a head's bias to shared memory. Columns beyond the window's cells become -infinity.
template <typename Config>
__device__ __forceinline__ void load_bias(char* shared, const typename Config::T* bias) {
  using T = typename Config::T;
  const int thread = static_cast<int>(threadIdx.x);
  const int threads = static_cast<int>(blockDim.x);
  if constexpr (Config::kRows == Config::kCells) {
    constexpr int kChunks = Config::kCells / 8;
    for (int i = thread; i < Config::kRows * kChunks; i += threads) {
      const int row = i / kChunks, chunk = i % kChunks;
      copy_async(shared + row * Config::kBiasRow + chunk * 16, bias + i * 8, true);
    }
  } else {
    for (int i = thread; i < Config::kRows * Config::kRows; i += threads) {
      const int row = i / Config::kRows, column = i % Config::kRows;
      const T outside = narrow<T>(column < Config::kCells ? 0.0f : -INFINITY);
      reinterpret_cast<T*>(shared + row * Config::kBiasRow)[column] =
          row < Config::kCells && column < Config::kCells ? bias[row * Config::kCells + column]
                                                          : outside;
    }
  }
}

// The grid has `slices` blocks for each head; block b serves head b % heads.
template <typename Config>
__global__ void __launch_bounds__(Config::kThreads, Config::kBlocks)
    window_tensor_core_kernel(const __grid_constant__ WindowMap map,
                              const __grid_constant__ WindowArguments arguments, int num_heads,
                              int slices) {
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 800
  constexpr int kTeamThreads = Config::kWarps * 32;
  char* const shared = dynamic_shared();
  const int head = static_cast<int>(blockIdx.x) % num_heads;
  const int slice = static_cast<int>(blockIdx.x) / num_heads;
  const int64_t windows = map.windows;
  const int end = static_cast<int>(windows * (slice + 1) / slices);
  const int teams = static_cast<int>(blockDim.x) / kTeamThreads;
  const int team = static_cast<int>(threadIdx.x) / kTeamThreads;
  const int warp = static_cast<int>(threadIdx.x) / 32 % Config::kWarps;

  if constexpr (Config::kSharedBias) {
    load_bias<Config>(shared, static_cast<const typename Config::T*>(arguments.bias) +
                                  static_cast<int64_t>(head) * Config::kCells * Config::kCells);
  }
  WindowWarp<Config> worker(map, arguments, num_heads, head, warp, shared,
                            shared + Config::kBiasBytes + team * Config::kTeamBytes);
  int window = static_cast<int>(windows * slice / slices) + team;
  typename WindowWarp<Config>::Cells cells{};
  if (window < end) {
    cells = worker.find(window);
    worker.begin_load(cells, 0);
  }
  wait_for_copies();
  __syncthreads();
  for (int buffer = 0; window < end; window += teams, buffer ^= 1) {
    worker.take_queries();
    __syncwarp();
    auto next = cells;
    if (window + teams < end) {
      next = worker.find(window + teams);
      worker.begin_load(next, buffer ^ 1);
    }
    worker.attend(cells, buffer);
    cells = next;
    wait_for_copies();
    sync_some(1 + team, kTeamThreads);
  }
#endif
}

template <typename Config>
cudaError_t launch_window_tensor_core(const WindowProblem& problem,
                                      const WindowArguments& arguments, cudaStream_t stream) {
  int multiprocessors = 0, shared_limit = 0, major = 0;
  cudaError_t status = get_attribute(cudaDevAttrMultiProcessorCount, multiprocessors);
  if (status == cudaSuccess) {
    status = get_attribute(cudaDevAttrMaxSharedMemoryPerBlockOptin, shared_limit);
  }
  if (status == cudaSuccess) status = get_attribute(cudaDevAttrComputeCapabilityMajor, major);
  if (status != cudaSuccess) return status;
  const int64_t windows = problem.num_windows();
  const int fitting = (shared_limit - Config::kBiasBytes) / Config::kTeamBytes;
  const int teams = static_cast<int>(std::min<int64_t>({Config::kTeams, fitting, windows}));
  if (major < 8 || fitting < 1) return cudaErrorNotSupported;

  // As many blocks as the GPU holds at once, but none without a window for each team.
  const int64_t resident = int64_t{multiprocessors} * Config::kBlocks;
  const int64_t slices =
      std::clamp<int64_t>(resident / problem.num_heads, 1, (windows + teams - 1) / teams);
  const auto kernel = window_tensor_core_kernel<Config>;
  const int shared_bytes = Config::shared_bytes(teams);
  status = cudaFuncSetAttribute(reinterpret_cast<const void*>(kernel),
                                cudaFuncAttributeMaxDynamicSharedMemorySize, shared_bytes);
  if (status != cudaSuccess) return status;
  cudaLaunchConfig_t config = launch_config(dim3(static_cast<unsigned>(slices * problem.num_heads)),
                                            teams * Config::kWarps * 32, stream);
  config.dynamicSmemBytes = static_cast<size_t>(shared_bytes);
  return cudaLaunchKernelEx(&config, kernel, WindowMap(problem), arguments,
                            static_cast<int>(problem.num_heads), static_cast<int>(slices));
}

// Runs a problem that can_run(). cudaErrorNotSupported: this GPU cannot.
template <typename T>
cudaError_t run_window_tensor_core(const WindowProblem& problem, const WindowArguments& arguments,
                                   cudaStream_t stream) {
  return with_constant<7, 8, 12, 16>(problem.window_size, [&](auto window) {
    return with_constant<16, 32, 64>(problem.head_dim, [&](auto channels) {
      using Config = WindowConfig<T, decltype(window)::value, decltype(channels)::value>;
      return launch_window_tensor_core<Config>(problem, arguments, stream);
    });
  });
}

}  // namespace msda
