// Window attention on tensor cores: "tensor_core" of window_choice.h.
//
// Problem   that of window_plain.cuh, for half and bfloat16. Logits, softmax and sums are float;
//           the weights are rounded to T before they meet the values.
// Blocks    A block serves one head. It reads the head's bias into shared memory once, and goes
//           from window to window. Each team of its warps takes one window at a time; the next
//           window's q, k and v come by asynchronous copies meanwhile.
// Warps     A warp has 16 query rows of its team's windows and takes kKeys keys in a step: their
//           logits stay in registers, and become the first factor of the product with v there.
// Softmax   online over the steps. The sums are scaled by a new maximum only if it exceeds the old
//           one by more than kSlack; until then weights are at most 2^kSlack, which T can hold. A
//           product with ones adds up the weights, on tensor cores and over lanes at once.
// Shared    rows of q, k and v with their chunks of 16 bytes permuted (chunk_of()), rows of the
//           bias 16 bytes apart, so that no eight rows of a matrix share a bank.
// Traffic   qkv once, past L1, and the output once. A head's bias once for each of its blocks.
// Limits    those of window_choice.h; 50 to 224 KB of shared memory. Deterministic.
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
  static constexpr int kRows = (kCells + 15) / 16 * 16;  // with rows that fill the last warp
  static constexpr bool kWide = kHeadDim == 64;          // leaves few registers for logits
  static constexpr int kKeys = kWindow == 12 ? (kWide ? 16 : 48) : kWindow == 16 && kWide ? 32 : 64;
  static constexpr int kWarps = kRows / 16;  // of a team
  static constexpr int kTeams = kWindow == 12 ? 2 : 16 / kWarps;
  static constexpr int kThreads = kTeams * kWarps * 32;

  // Bytes of shared memory. The bias of the largest form does not fit: lanes read it from L2.
  static constexpr bool kSharedBias = !(kWindow == 16 && kWide);
  static constexpr int kBiasRow = 2 * kRows + 16;
  static constexpr int kBiasBytes = kSharedBias ? kRows * kBiasRow : 0;
  static constexpr int kRow = 2 * kHeadDim;
  static constexpr int kMatrix = kRows * kRow;                // q, k or v of a window
  static constexpr int kTeamBytes = 5 * kMatrix + 2 * kRows;  // q; k, v and regions of two windows
  static constexpr int shared_bytes(int teams) { return kBiasBytes + teams * kTeamBytes; }

  static_assert(kRows % kKeys == 0 && kKeys % 16 == 0);
};

// Where a 16-byte chunk of a row of kHeadDim channels is. Eight rows from a multiple of 8 on have
// the same chunk in eight different parts of 128 bytes.
template <int kHeadDim>
__device__ __forceinline__ int chunk_of(int row, int chunk) {
  constexpr int kChunks = kHeadDim / 8;
  return row * kHeadDim * 2 + ((chunk ^ (row / (8 / kChunks))) % kChunks) * 16;
}

// One warp of a team: 16 query rows of each of the team's windows.
template <typename Config>
class WindowWarp {
 public:
  using T = typename Config::T;
  static constexpr int kDepth = Config::kHeadDim / 16;  // products of 16 channels
  static constexpr int kPairs = Config::kKeys / 16;     // of 8 keys, in a step
  static constexpr float kSlack = 8;

  __device__ __forceinline__ WindowWarp(const WindowMap& map, const WindowArguments& arguments,
                                        int num_heads, int head, int team, int warp)
      : map_(map),
        arguments_(arguments),
        channels_(num_heads * Config::kHeadDim),
        head_(head),
        first_row_(warp * 16),
        lane_(static_cast<int>(threadIdx.x) % 32),
        team_(Config::kBiasBytes + team * Config::kTeamBytes) {}

  // Begins to copy the warp's rows of q, and of k, v and regions into one of two buffers.
  __device__ __forceinline__ void begin_load(const Window& window, int buffer) {
    constexpr int kChunks = Config::kHeadDim / 8;
    const int own_row = first_row_ + lane_ % 16;
    const int inner_row = own_row / Config::kWindow, inner_column = own_row % Config::kWindow;
    next_cell_ = own_row < Config::kCells
                     ? static_cast<int>(map_.cell(window, inner_row, inner_column))
                     : kNoCell;
    next_masked_ = window.row_split < Config::kWindow || window.column_split < Config::kWindow;
    if (lane_ < 16) {
      regions(buffer)[own_row] = static_cast<uint8_t>(
          region_of(inner_row, inner_column, window.row_split, window.column_split));
    }

    const int chunk = lane_ % kChunks;
    const T* const qkv = head_of(arguments_.qkv) + chunk * 8;
    const T* const padding = head_of(arguments_.padding) + chunk * 8;
    char* const key_values = team() + (1 + 2 * buffer) * Config::kMatrix;
#pragma unroll
    for (int i = 0; i < 16; i += 32 / kChunks) {
      const int cell = __shfl_sync(kFullMask, next_cell_, i + lane_ / kChunks);
      const bool read = cell >= 0 || (cell == kPadding && arguments_.padding != nullptr);
      const T* const source =
          cell == kPadding && read ? padding : at(qkv, max(cell, 0), 3 * channels_);
      const int place = chunk_of<Config::kHeadDim>(first_row_ + i + lane_ / kChunks, chunk);
      copy_async(team() + place, source, read);
      copy_async(key_values + place, source + channels_, read);
      copy_async(key_values + Config::kMatrix + place, source + 2 * channels_, read);
    }
  }

  // Turns to the window that was loaded last: reads the warp's queries, so that the next window's
  // can be copied over them.
  __device__ __forceinline__ void begin_window() {
    cell_ = next_cell_;
    masked_ = next_masked_;
#pragma unroll
    for (int depth = 0; depth < kDepth; ++depth) {
      load_matrices(query_[depth],
                    team() + first_row_ * Config::kRow +
                        chunk_of<Config::kHeadDim>(lane_ % 16, 2 * depth + lane_ / 16));
    }
  }

  // Attends in a window whose keys and values are in a buffer, and writes the result.
  __device__ __forceinline__ void attend(int buffer) {
    const char* const keys = team() + (1 + 2 * buffer) * Config::kMatrix;
    float largest[2] = {-1e30f, -1e30f};  // not -infinity, which a logit may be
    float total[4] = {}, sums[2 * kDepth][4] = {};
#pragma unroll 1
    for (int first_key = 0; first_key < Config::kRows; first_key += Config::kKeys) {
      float logits[2 * kPairs][4];
      make_logits(logits, keys, first_key);
      if (masked_) mask(logits, regions(buffer), first_key);
      raise_largest(logits, largest, total, sums);
      add_values(logits, largest, keys + Config::kMatrix, first_key, total, sums);
    }
    write(total, sums);
  }

 private:
  using Logits = float[2 * kPairs][4];
  using Sums = float[2 * kDepth][4];

  // Values of next_cell_ and cell_ that are no cell: in the padding, or beyond the window's rows.
  static constexpr int kPadding = -1, kNoCell = -2;

  // The first of the lane's two rows; the second is 8 further.
  __device__ __forceinline__ int row() const { return first_row_ + lane_ / 4; }
  // The first of the lane's two columns in 8.
  __device__ __forceinline__ int column() const { return lane_ % 4 * 2; }

  __device__ __forceinline__ char* team() const { return dynamic_shared() + team_; }
  __device__ __forceinline__ uint8_t* regions(int buffer) const {
    return reinterpret_cast<uint8_t*>(team()) + 5 * Config::kMatrix + buffer * Config::kRows;
  }

  // logits = q k^T / sqrt(d) + bias
  __device__ __forceinline__ void make_logits(Logits& logits, const char* keys,
                                              int first_key) const {
    const float scale = Config::kHeadDim == 16   ? 0.25f
                        : Config::kHeadDim == 64 ? 0.125f
                                                 : 0.17677669529663687f;
    const int lane_row = lane_ / 16 * 8 + lane_ % 8;
#pragma unroll
    for (int pair = 0; pair < kPairs; ++pair) {
      const int key = first_key + 16 * pair;
#pragma unroll
      for (int i = 0; i < 4; ++i) logits[2 * pair][i] = logits[2 * pair + 1][i] = 0;
#pragma unroll
      for (int depth = 0; depth < kDepth; ++depth) {
        uint32_t words[4];
        load_matrices(words, keys + key * Config::kRow +
                                 chunk_of<Config::kHeadDim>(lane_row, 2 * depth + lane_ / 8 % 2));
        multiply_accumulate<T>(logits[2 * pair], query_[depth], words[0], words[1]);
        multiply_accumulate<T>(logits[2 * pair + 1], query_[depth], words[2], words[3]);
      }
      uint32_t words[4];
      read_bias(words, key);
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float2 two = unpack(bits<Packed<T>>(words[i]));
        float(&four)[4] = logits[2 * pair + i / 2];
        four[i % 2 * 2] = four[i % 2 * 2] * scale + two.x;
        four[i % 2 * 2 + 1] = four[i % 2 * 2 + 1] * scale + two.y;
      }
    }
  }

  // The bias of 16 keys: rows g and g + 8 of the first 8 keys, then of the others.
  __device__ __forceinline__ void read_bias(uint32_t (&words)[4], int key) const {
    if constexpr (Config::kSharedBias) {
      const int bias_row = first_row_ + lane_ % 16;
      load_matrices(words,
                    dynamic_shared() + bias_row * Config::kBiasRow + key * 2 + lane_ / 16 * 16);
    } else {
      const T* const bias = static_cast<const T*>(arguments_.bias) +
                            static_cast<int64_t>(head_) * Config::kCells * Config::kCells;
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const T* const address =
            bias + (row() + i % 2 * 8) * Config::kCells + key + i / 2 * 8 + column();
        words[i] = __ldg(reinterpret_cast<const uint32_t*>(address));
      }
    }
  }

  // Adds the mask between cells of several regions.
  __device__ __forceinline__ void mask(Logits& logits, const uint8_t* regions,
                                       int first_key) const {
    const int own[2] = {regions[row()], regions[row() + 8]};
#pragma unroll
    for (int i = 0; i < 2 * kPairs; ++i) {
      const int key = first_key + 8 * i + column();
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        if (own[j / 2] != regions[key + j % 2]) logits[i][j] += kWindowMask;
      }
    }
  }

  // Raises the maxima, in units of log2, where a logit exceeds them by more than kSlack.
  __device__ __forceinline__ void raise_largest(const Logits& logits, float (&largest)[2],
                                                float (&total)[4], Sums& sums) const {
    float own[2];
    bool raises = false;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float most = logits[0][2 * half];
#pragma unroll
      for (int i = 0; i < 2 * kPairs; ++i) {
        most = fmaxf(most, fmaxf(logits[i][2 * half], logits[i][2 * half + 1]));
      }
      own[half] = fmaxf(most * kLog2E, largest[half]);
      raises = raises || own[half] > largest[half] + kSlack;
    }
    if (!__any_sync(kFullMask, raises)) return;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const float most = max_over_group(own[half], 4);  // over the lanes that share a row
      const float fade = exp2_approx(largest[half] - most);
      largest[half] = most;
      total[2 * half] *= fade;
#pragma unroll
      for (int i = 0; i < 2 * kDepth; ++i) {
        sums[i][2 * half] *= fade;
        sums[i][2 * half + 1] *= fade;
      }
    }
  }

  // Logits become weights, relative to the maxima. sums += weights * v, total += weights * 1:
  // a product on tensor cores adds up the rounded weights, over all lanes that share a row.
  __device__ __forceinline__ void add_values(const Logits& logits, const float (&largest)[2],
                                             const char* values, int first_key, float (&total)[4],
                                             Sums& sums) const {
    const uint32_t ones = pack<T>(1.0f, 1.0f);
#pragma unroll
    for (int pair = 0; pair < kPairs; ++pair) {
      uint32_t weights[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float(&four)[4] = logits[2 * pair + i / 2];
        const int half = i % 2;
        weights[i] = pack<T>(exp2_approx(four[2 * half] * kLog2E - largest[half]),
                             exp2_approx(four[2 * half + 1] * kLog2E - largest[half]));
      }
      multiply_accumulate<T>(total, weights, ones, ones);
#pragma unroll
      for (int depth = 0; depth < kDepth; ++depth) {
        uint32_t words[4];
        load_transposed(words, values + (first_key + 16 * pair) * Config::kRow +
                                   chunk_of<Config::kHeadDim>(lane_ % 16, 2 * depth + lane_ / 16));
        multiply_accumulate<T>(sums[2 * depth], weights, words[0], words[1]);
        multiply_accumulate<T>(sums[2 * depth + 1], weights, words[2], words[3]);
      }
    }
  }

  // Divides by the sum of the weights. Two lanes exchange words, so that each stores 8 bytes.
  __device__ __forceinline__ void write(const float (&total)[4], const Sums& sums) const {
    const bool odd = lane_ % 2 == 1;
    T* const output = static_cast<T*>(arguments_.output) + head_ * Config::kHeadDim +
                      lane_ % 4 / 2 * 4 + (odd ? 8 : 0);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const float scale = __fdividef(1.0f, total[2 * half]);
      const int cell = __shfl_sync(kFullMask, cell_, lane_ / 4 + 8 * half);
      T* const address = at(output, max(cell, 0), channels_);
#pragma unroll
      for (int depth = 0; depth < kDepth; ++depth) {
        uint32_t words[2];
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          const float(&four)[4] = sums[2 * depth + i];
          words[i] = pack<T>(four[2 * half] * scale, four[2 * half + 1] * scale);
        }
        const uint32_t other = __shfl_xor_sync(kFullMask, odd ? words[0] : words[1], 1);
        const uint2 joined = odd ? make_uint2(other, words[1]) : make_uint2(words[0], other);
        if (cell >= 0) *reinterpret_cast<uint2*>(address + 16 * depth) = joined;
      }
    }
  }

  // A cell's place in a tensor of cells.
  template <typename P>
  static __device__ __forceinline__ P* at(P* first, int cell, int stride) {
    return first + static_cast<int64_t>(cell) * stride;
  }
  // The head's first channel of a tensor of cells.
  __device__ __forceinline__ const T* head_of(const void* tensor) const {
    return static_cast<const T*>(tensor) + head_ * Config::kHeadDim;
  }

  const WindowMap& map_;
  const WindowArguments& arguments_;
  const int channels_, head_, first_row_, lane_;
  const int team_;        // where the team's shared memory begins; the bias begins at 0
  int next_cell_, cell_;  // of row lane % 16 of the window loaded last, and of the one at work
  bool next_masked_, masked_;
  uint32_t query_[kDepth][4];
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
__global__ void __launch_bounds__(Config::kThreads, 1)
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

  begin_next_kernel();
  wait_for_last_kernel();
  if constexpr (Config::kSharedBias) {
    load_bias<Config>(shared, static_cast<const typename Config::T*>(arguments.bias) +
                                  static_cast<int64_t>(head) * Config::kCells * Config::kCells);
  }
  WindowWarp<Config> worker(map, arguments, num_heads, head, team, warp);
  int window = static_cast<int>(windows * slice / slices) + team;
  if (window < end) worker.begin_load(map.window(window), 0);
  wait_for_copies();
  __syncthreads();
  for (int buffer = 0; window < end; buffer ^= 1) {
    worker.begin_window();
    __syncwarp();
    window += teams;
    if (window < end) worker.begin_load(map.window(window), buffer ^ 1);
    worker.attend(buffer);
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

  // A block for each multiprocessor, but none without a window for each team.
  const int64_t slices =
      std::clamp<int64_t>(multiprocessors / problem.num_heads, 1, (windows + teams - 1) / teams);
  const auto kernel = window_tensor_core_kernel<Config>;
  const int shared_bytes = Config::shared_bytes(teams);
  status = cudaFuncSetAttribute(reinterpret_cast<const void*>(kernel),
                                cudaFuncAttributeMaxDynamicSharedMemorySize, shared_bytes);
  if (status != cudaSuccess) return status;
  cudaLaunchConfig_t config = launch_config(dim3(static_cast<unsigned>(slices * problem.num_heads)),
                                            teams * Config::kWarps * 32, stream);
  config.dynamicSmemBytes = static_cast<size_t>(shared_bytes);
  return launch_early(config, kernel, WindowMap(problem), arguments,
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
