// Window attention on tensor cores: "tensor_core" of window_choice.h.
//
// Problem   that of window_plain.cuh, for half and bfloat16. Logits, softmax and sums are float;
//           the weights are rounded to T before they meet the values. A result in int8 is rounded
//           once, from float.
// Blocks    A block serves one head. It keeps the head's bias in shared memory, and goes from
//           window to window. Each team of its warps takes one window at a time; the next window's
//           q, k and v come by asynchronous copies meanwhile.
// Warps     A warp has 16 query rows of its team's windows and takes kKeys keys in a step: their
//           logits stay in registers, and become the first factor of the product with v there.
// Logits    The sums of q k^T begin with sqrt(d) * bias, and the exponent's factor is
//           log2(e) / sqrt(d).
// Softmax   relative to a bound of each row, which the keys of the warp's own cells set. Where the
//           weights of a row overflow, the warp repeats its rows and raises the bounds in every
//           step. A product with ones adds up the weights, on tensor cores and over lanes at once.
// Mask      a product of eight more channels, in windows of several regions.
// Shared    the bias in float, in the order of the lanes that read it; rows of q, k and v with
//           their chunks of 16 bytes permuted (chunk_of()), so that no eight rows of a matrix share
//           a bank.
// Traffic   qkv once, past L1, and the output once. A head's bias once for each of its blocks.
// Limits    those of window_choice.h; 50 to 223 KB of shared memory. Deterministic.
#pragma once

#include <algorithm>

#include "msda/cuda_launch.cuh"
#include "msda/quantize.cuh"
#include "msda/tensor_core.cuh"
#include "msda/vector.cuh"
#include "msda/window_cells.cuh"

namespace msda {

// What a kernel is compiled for, and its place in a block.
template <typename T_, int kWindow_, int kHeadDim_, bool kSharedBias_ = true>
struct WindowConfig {
  using T = T_;
  static constexpr int kWindow = kWindow_;
  static constexpr int kHeadDim = kHeadDim_;
  static constexpr int kCells = kWindow * kWindow;       // L
  static constexpr int kRows = (kCells + 15) / 16 * 16;  // with rows that fill the last warp
  static constexpr bool kWide = kHeadDim == 64;          // leaves few registers for logits
  static constexpr int kKeys = kWindow == 12 ? 16 : kWindow == 16 && kWide ? 32 : 64;
  static constexpr int kUnrolled = kWindow == 12 && !kWide ? 3 : 1;  // steps
  static constexpr int kWarps = kRows / 16;                          // of a team
  static constexpr int kTeams = kWindow == 12 ? 2 : 16 / kWarps;
  static constexpr int kThreads = kTeams * kWarps * 32;

  // A logit is kScale * (q k^T + kRoot * (bias + mask)), in units of log2.
  static constexpr float kRoot = kHeadDim == 16 ? 4 : kHeadDim == 64 ? 8 : 5.656854249492381f;
  static constexpr float kScale = kLog2E / kRoot;

  // Bytes of shared memory. The bias of large forms does not fit: lanes read it from L1 and L2.
  static constexpr bool kSharedBias = kSharedBias_ && (kWindow < 12 || (kWindow == 12 && !kWide));
  static constexpr int kBiasBytes = kSharedBias ? kRows * kRows * 4 : 0;
  static constexpr int kMaskBytes = kRows * 16;
  static constexpr int kRow = 2 * kHeadDim;
  static constexpr int kMatrix = kRows * kRow;                // q, k or v of a window
  static constexpr int kTeamBytes = 5 * kMatrix;              // q; k and v of two windows
  static constexpr int kHeadBytes = kBiasBytes + kMaskBytes;  // of what all teams read
  static constexpr int shared_bytes(int teams) { return kHeadBytes + teams * kTeamBytes; }

  static_assert(kRows % kKeys == 0 && kKeys % 16 == 0);
};

// Two products with 8 keys each compute the logits of 16 keys. Column 0 to 7 of product 0 or 1 is
// this key. So the four keys of a lane are neighbours, and it reads their bias at once.
__device__ __forceinline__ int key_of(int product, int column) {
  return column / 2 * 4 + product * 2 + column % 2;
}

// Where a 16-byte chunk of a row of kHeadDim channels is. Eight rows from a multiple of 8 on have
// the same chunk in eight different parts of 128 bytes. So do the eight of key_of(), but for 16
// channels.
template <int kHeadDim>
__device__ __forceinline__ int chunk_of(int row, int chunk) {
  constexpr int kChunks = kHeadDim / 8;
  return row * kHeadDim * 2 +
         ((chunk ^ row / (8 / kChunks) ^ row / 8 % 2 * (kChunks / 4)) % kChunks) * 16;
}

// The region of a window's cell, where the window has several along both axes.
template <typename Config>
__device__ __forceinline__ int region_of_cell(const WindowMap& map, int cell) {
  const int split = Config::kWindow - map.shift;
  return region_of(cell / Config::kWindow, cell % Config::kWindow, split, split);
}

// The bias [L, L] of a head.
template <typename Config>
__device__ __forceinline__ const typename Config::T* head_bias(const WindowArguments& arguments,
                                                               int head) {
  return static_cast<const typename Config::T*>(arguments.bias) +
         static_cast<int64_t>(head) * Config::kCells * Config::kCells;
}

// sqrt(d) * bias of four keys, the first a multiple of 4. Keys beyond the window's cells have
// -infinity.
template <typename Config>
__device__ __forceinline__ float4 four_of_bias(const typename Config::T* bias, int row, int key) {
  if constexpr (Config::kRows == Config::kCells) {
    using Two = Packed<typename Config::T>;
    const uint2 words = __ldg(reinterpret_cast<const uint2*>(bias + row * Config::kCells + key));
    const float2 low = unpack(bits<Two>(words.x)), high = unpack(bits<Two>(words.y));
    return make_float4(low.x * Config::kRoot, low.y * Config::kRoot, high.x * Config::kRoot,
                       high.y * Config::kRoot);
  } else {
    const auto number = [&](int column) {
      if (column >= Config::kCells) return -INFINITY;
      return row < Config::kCells ? widen(bias[row * Config::kCells + column]) * Config::kRoot : 0;
    };
    return make_float4(number(key), number(key + 1), number(key + 2), number(key + 3));
  }
}

// What a lane has of sqrt(d) * bias for 16 rows and 16 keys: the accumulators of the first and the
// second product with 8 keys.
template <typename Config>
__device__ __forceinline__ void fragment_of_bias(float4 (&products)[2],
                                                 const typename Config::T* bias, int first_row,
                                                 int first_key, int lane) {
  const int row = first_row + lane / 4, key = first_key + lane % 4 * 4;
  const float4 upper = four_of_bias<Config>(bias, row, key);
  const float4 lower = four_of_bias<Config>(bias, row + 8, key);
  products[0] = make_float4(upper.x, upper.y, lower.x, lower.y);
  products[1] = make_float4(upper.z, upper.w, lower.z, lower.w);
}

// One warp of a team: 16 query rows of each of the team's windows.
template <typename Config>
class WindowWarp {
 public:
  using T = typename Config::T;
  static constexpr int kDepth = Config::kHeadDim / 16;  // products of 16 channels
  static constexpr int kPairs = Config::kKeys / 16;     // of 8 keys, in a step
  static constexpr float kSlack = 8;
  static constexpr float kLargestTotal = 1 << 25;  // more than the sum of finite weights in half

  __device__ __forceinline__ WindowWarp(const WindowMap& map, const WindowArguments& arguments,
                                        int num_heads, int head, int team, int warp,
                                        float output_factor)
      : map_(map),
        arguments_(arguments),
        channels_(num_heads * Config::kHeadDim),
        head_(head),
        first_row_(warp * 16),
        lane_(static_cast<int>(threadIdx.x) % 32),
        output_factor_(output_factor),
        team_(Config::kHeadBytes + team * Config::kTeamBytes) {}

  // Begins to copy the warp's rows of q, and of k and v into one of two buffers.
  __device__ __forceinline__ void begin_load(const Window& window, int buffer) {
    const int lane = no_hoist(lane_);  // registers are for attend()
    constexpr int kChunks = Config::kHeadDim / 8;
    const int own_row = first_row_ + lane % 16;
    const int inner_row = own_row / Config::kWindow, inner_column = own_row % Config::kWindow;
    next_cell_ = own_row < Config::kCells
                     ? static_cast<int>(map_.cell(window, inner_row, inner_column))
                     : kNoCell;
    next_borders_ = (window.row_split < Config::kWindow ? 2 : 0) +
                    (window.column_split < Config::kWindow ? 1 : 0);

    const int chunk = lane % kChunks;
    const T* const qkv = head_of(arguments_.qkv) + chunk * 8;
    const T* const padding = head_of(arguments_.padding) + chunk * 8;
    char* const key_values = team() + (1 + 2 * buffer) * Config::kMatrix;
#pragma unroll
    for (int i = 0; i < 16; i += 32 / kChunks) {
      const int cell = __shfl_sync(kFullMask, next_cell_, i + lane / kChunks);
      const bool read = cell >= 0 || (cell == kPadding && arguments_.padding != nullptr);
      const T* const source =
          cell == kPadding && read ? padding : at(qkv, max(cell, 0), 3 * channels_);
      const int place = chunk_of<Config::kHeadDim>(first_row_ + i + lane / kChunks, chunk);
      copy_async(team() + place, source, read);
      copy_async(key_values + place, source + channels_, read);
      copy_async(key_values + Config::kMatrix + place, source + 2 * channels_, read);
    }
  }

  // Turns to the window that was loaded last: reads the warp's queries, so that the next window's
  // can be copied over them.
  __device__ __forceinline__ void begin_window() {
    cell_ = next_cell_;
    borders_ = next_borders_;
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
    const char* const values = keys + Config::kMatrix;
    Rows rows;
    if (borders_ == 0) {
      add_keys<false>(keys, values, rows);
    } else {
      add_keys<true>(keys, values, rows);
    }
    const bool fits = rows.total[0] < kLargestTotal && rows.total[2] < kLargestTotal;
    if (__any_sync(kFullMask, !fits)) add_any_keys(keys, values, rows);
    if (output_factor_ == 0) {
      write<T>(rows, 1.0f);
    } else {
      write<int8_t>(rows, output_factor_);
    }
  }

 private:
  // What a lane has of its two rows: bounds of the logits in units of log2, and the sums of the
  // weights and of weights * v.
  struct Rows {
    float bound[2] = {-1e30f, -1e30f};  // not -infinity, which a logit may be
    float total[4] = {};
    float sums[2 * kDepth][4] = {};
  };

  // Values of next_cell_ and cell_ that are no cell: in the padding, or beyond the window's rows.
  static constexpr int kPadding = -1, kNoCell = -2;

  // The first of the lane's two rows; the second is 8 further.
  __device__ __forceinline__ int row() const { return first_row_ + lane_ / 4; }

  __device__ __forceinline__ char* team() const { return dynamic_shared() + team_; }

  // Sets the bounds by the keys of the warp's own cells, which no mask hides entirely. Then adds up
  // all keys.
  template <bool kMasked>
  __device__ __forceinline__ void add_keys(const char* keys, const char* values, Rows& rows) const {
    uint32_t mask[2];
    read_query_mask(mask);
    float own[2][4];
    make_logits<kMasked>(own, keys, first_row_, mask);
#pragma unroll
    for (int half = 0; half < 2; ++half) rows.bound[half] = bound_of(own, half, rows.bound[half]);
#pragma unroll Config::kUnrolled
    for (int key = 0; key < Config::kRows; key += Config::kKeys) {
      float logits[2 * kPairs][4];
      make_logits<kMasked>(logits, keys, key, mask);
      add_values(logits, values, key, rows);
    }
  }

  // The same for any logits: raises the bounds in every step.
  __device__ __forceinline__ void add_any_keys(const char* keys, const char* values,
                                               Rows& rows) const {
    uint32_t mask[2];
    read_query_mask(mask);
    rows = Rows();
#pragma unroll 1
    for (int key = 0; key < Config::kRows; key += Config::kKeys) {
      float logits[2 * kPairs][4];
      make_logits<true>(logits, keys, key, mask);
      raise_bounds(logits, rows);
      add_values(logits, values, key, rows);
    }
  }

  // logits = q k^T + sqrt(d) * (bias + mask)
  template <bool kMasked, int kTwice>
  __device__ __forceinline__ void make_logits(float (&logits)[kTwice][4], const char* keys,
                                              int first_key,
                                              const uint32_t (&query_mask)[2]) const {
    const int lane_key = key_of(lane_ / 16, lane_ % 8);
#pragma unroll
    for (int pair = 0; pair < kTwice / 2; ++pair) {
      const int key = first_key + 16 * pair;
      read_bias(logits[2 * pair], logits[2 * pair + 1], key);
      if constexpr (kMasked) {
        const uint32_t* const key_mask =
            reinterpret_cast<const uint32_t*>(dynamic_shared() + Config::kBiasBytes) + lane_;
        multiply_accumulate<T>(logits[2 * pair], query_mask, key_mask[key * 4]);
        multiply_accumulate<T>(logits[2 * pair + 1], query_mask, key_mask[(key + 8) * 4]);
      }
#pragma unroll
      for (int depth = 0; depth < kDepth; ++depth) {
        uint32_t words[4];
        load_matrices(words, keys + key * Config::kRow +
                                 chunk_of<Config::kHeadDim>(lane_key, 2 * depth + lane_ / 8 % 2));
        multiply_accumulate<T>(logits[2 * pair], query_[depth], words[0], words[1]);
        multiply_accumulate<T>(logits[2 * pair + 1], query_[depth], words[2], words[3]);
      }
    }
  }

  // The mask's first factor for the warp's rows. Channels 0 to 3 are the regions, and so are 4 to
  // 7: one where the row's query does not see the region, else zero.
  __device__ __forceinline__ void read_query_mask(uint32_t (&words)[2]) const {
    const int region = lane_ % 2 * 2;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int own = region_of_cell<Config>(map_, row() + 8 * half);
      words[half] = pack<T>(((own ^ region) & borders_) != 0 ? 1.0f : 0.0f,
                            ((own ^ (region + 1)) & borders_) != 0 ? 1.0f : 0.0f);
    }
  }

  // Reads sqrt(d) * bias of 16 keys.
  __device__ __forceinline__ void read_bias(float (&first)[4], float (&second)[4], int key) const {
    float4 two[2];
    if constexpr (Config::kSharedBias) {
      const float4* const source = reinterpret_cast<const float4*>(dynamic_shared()) +
                                   (first_row_ / 16 * Config::kRows + key) * 4 + lane_;
      two[0] = source[0];
      two[1] = source[32];
    } else {
      fragment_of_bias<Config>(two, head_bias<Config>(arguments_, head_), first_row_, key, lane_);
    }
    first[0] = two[0].x, first[1] = two[0].y, first[2] = two[0].z, first[3] = two[0].w;
    second[0] = two[1].x, second[1] = two[1].y, second[2] = two[1].z, second[3] = two[1].w;
  }

  // Returns the bound of a row, raised if a logit exceeds it. The weight of the largest logit is
  // 2^-kSlack then. In half, weights 2^(kSlack + 15) times as large do not overflow.
  template <int kTwice>
  __device__ __forceinline__ float bound_of(const float (&logits)[kTwice][4], int half,
                                            float bound) const {
    float most = logits[0][2 * half];
#pragma unroll
    for (int i = 0; i < kTwice; ++i) {
      most = fmaxf(most, fmaxf(logits[i][2 * half], logits[i][2 * half + 1]));
    }
    most = max_over_group(most, 4) * Config::kScale;  // over the lanes that share a row
    return most > bound ? most + kSlack : bound;
  }

  // Raises bounds that the logits exceed, and scales what the rows have added up.
  __device__ __forceinline__ void raise_bounds(const float (&logits)[2 * kPairs][4],
                                               Rows& rows) const {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const float bound = bound_of(logits, half, rows.bound[half]);
      const float fade = exp2_approx(rows.bound[half] - bound);
      rows.bound[half] = bound;
      rows.total[2 * half] *= fade;
#pragma unroll
      for (int i = 0; i < 2 * kDepth; ++i) {
        rows.sums[i][2 * half] *= fade;
        rows.sums[i][2 * half + 1] *= fade;
      }
    }
  }

  // Logits become weights, relative to the bounds. sums += weights * v, total += weights * 1: a
  // product on tensor cores adds up the rounded weights, over all lanes that share a row.
  __device__ __forceinline__ void add_values(const float (&logits)[2 * kPairs][4],
                                             const char* values, int first_key, Rows& rows) const {
    const uint32_t ones = pack<T>(1.0f, 1.0f);
    const int lane_key = key_of(lane_ / 8 % 2, lane_ % 8);
#pragma unroll
    for (int pair = 0; pair < kPairs; ++pair) {
      uint32_t weights[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float(&four)[4] = logits[2 * pair + i / 2];
        const int half = i % 2;
        weights[i] = pack<T>(exp2_approx(four[2 * half] * Config::kScale - rows.bound[half]),
                             exp2_approx(four[2 * half + 1] * Config::kScale - rows.bound[half]));
      }
      multiply_accumulate<T>(rows.total, weights, ones, ones);
#pragma unroll
      for (int depth = 0; depth < kDepth; ++depth) {
        uint32_t words[4];
        load_transposed(words, values + (first_key + 16 * pair) * Config::kRow +
                                   chunk_of<Config::kHeadDim>(lane_key, 2 * depth + lane_ / 16));
        multiply_accumulate<T>(rows.sums[2 * depth], weights, words[0], words[1]);
        multiply_accumulate<T>(rows.sums[2 * depth + 1], weights, words[2], words[3]);
      }
    }
  }

  // Divides by the sum of the weights and multiplies by `factor`. Two lanes exchange numbers, so
  // that each stores four neighbours.
  template <typename Result>
  __device__ __forceinline__ void write(const Rows& rows, float factor) const {
    const int lane = no_hoist(lane_);
    const bool odd = lane % 2 == 1;
    Result* const output = static_cast<Result*>(arguments_.output) + head_ * Config::kHeadDim +
                           lane % 4 / 2 * 4 + (odd ? 8 : 0);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const float scale = __fdividef(1.0f, rows.total[2 * half]) * factor;
      const int cell = __shfl_sync(kFullMask, cell_, lane / 4 + 8 * half);
      Result* const address = at(output, max(cell, 0), channels_);
#pragma unroll
      for (int depth = 0; depth < kDepth; ++depth) {
        const auto number = [&](int i) {
          return rows.sums[2 * depth + i / 2][2 * half + i % 2] * scale;
        };
        if constexpr (sizeof(Result) == 1) {
          const uint32_t word = quantize_four(number(0), number(1), number(2), number(3));
          const uint32_t other = __shfl_xor_sync(kFullMask, word, 1);
          const uint32_t joined =
              odd ? select_bytes<0x3276>(word, other) : select_bytes<0x5410>(word, other);
          if (cell >= 0) *reinterpret_cast<uint32_t*>(address + 16 * depth) = joined;
        } else {
          const uint32_t words[2] = {pack<T>(number(0), number(1)), pack<T>(number(2), number(3))};
          const uint32_t other = __shfl_xor_sync(kFullMask, odd ? words[0] : words[1], 1);
          const uint2 joined = odd ? make_uint2(other, words[1]) : make_uint2(words[0], other);
          if (cell >= 0) *reinterpret_cast<uint2*>(address + 16 * depth) = joined;
        }
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
  const float output_factor_;  // 1 / output_scale; 0: the result has type T
  const int team_;             // where the team's shared memory begins
  int next_cell_, cell_;       // of row lane % 16 of the window loaded last, and of the one at work
  int next_borders_, borders_;  // bits of the axes along which those have several regions
  uint32_t query_[kDepth][4];
};

// Writes a head's bias to shared memory: fragment_of_bias() of each 16 rows and 16 keys, row by
// row.
template <typename Config>
__device__ __forceinline__ void load_bias(char* shared, const typename Config::T* bias) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
#pragma unroll 3
  for (int i = static_cast<int>(threadIdx.x) / 32; i < Config::kWarps * Config::kWarps;
       i += static_cast<int>(blockDim.x) / 32) {
    float4 products[2];
    fragment_of_bias<Config>(products, bias, i / Config::kWarps * 16, i % Config::kWarps * 16,
                             lane);
    float4* const target = reinterpret_cast<float4*>(shared) + i * 64 + lane;
    target[0] = products[0];
    target[32] = products[1];
  }
}

// Writes the mask's second factor for all keys. The two channels of a key's region add up to
// sqrt(d) * kWindowMask: the first has its rounding to T, the second has the remainder.
template <typename Config>
__device__ __forceinline__ void make_mask(char* shared, const WindowMap& map) {
  using T = typename Config::T;
  for (int i = static_cast<int>(threadIdx.x); i < Config::kRows * 4;
       i += static_cast<int>(blockDim.x)) {
    const int key = i / 64 * 16 + key_of(i / 32 % 2, i / 4 % 8), channel = i % 4 * 2;
    const float rounded = widen(narrow<T>(kWindowMask * Config::kRoot));
    const float part = channel < 4 ? rounded : kWindowMask * Config::kRoot - rounded;
    const int region = region_of_cell<Config>(map, key);
    reinterpret_cast<uint32_t*>(shared)[i] =
        pack<T>(region == channel % 4 ? part : 0.0f, region == channel % 4 + 1 ? part : 0.0f);
  }
}

// The grid has `slices` blocks for each head; block b serves head b % heads.
template <typename Config>
__global__ void __launch_bounds__(Config::kThreads, 1)
    window_tensor_core_kernel(const __grid_constant__ WindowMap map,
                              const __grid_constant__ WindowArguments arguments, int num_heads,
                              int slices, float output_factor) {
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
  WindowWarp<Config> worker(map, arguments, num_heads, head, team, warp, output_factor);
  int number = static_cast<int>(windows * slice / slices) + team;
  Window window = map.window(number);
  if (number < end) worker.begin_load(window, 0);
  if constexpr (Config::kSharedBias) load_bias<Config>(shared, head_bias<Config>(arguments, head));
  make_mask<Config>(shared + Config::kBiasBytes, map);  // add_any_keys() reads it without shift too
  wait_for_copies();
  __syncthreads();
  for (int buffer = 0; number < end; buffer ^= 1) {
    worker.begin_window();
    __syncwarp();
    number += teams;
    window = map.next(window, teams);
    if (number < end) worker.begin_load(window, buffer ^ 1);
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
  const int fitting = (shared_limit - Config::kHeadBytes) / Config::kTeamBytes;
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
                      static_cast<int>(problem.num_heads), static_cast<int>(slices),
                      problem.output_factor());
}

// Runs a problem that can_run(). cudaErrorNotSupported: this GPU cannot.
template <typename T>
cudaError_t run_window_tensor_core(const WindowProblem& problem, const WindowArguments& arguments,
                                   cudaStream_t stream) {
  return with_constant<7, 8, 12, 16>(problem.window_size, [&](auto window) {
    return with_constant<16, 32, 64>(problem.head_dim, [&](auto channels) {
      constexpr int kWindow = decltype(window)::value, kHeadDim = decltype(channels)::value;
      using Config = WindowConfig<T, kWindow, kHeadDim>;
      const cudaError_t status = launch_window_tensor_core<Config>(problem, arguments, stream);
      // Blocks of compute capability 8.6, 8.9 and 12.0 have 99 KB.
      if constexpr (Config::kSharedBias && Config::shared_bytes(1) > 99 * 1024) {
        if (status == cudaErrorNotSupported) {
          using Lean = WindowConfig<T, kWindow, kHeadDim, false>;
          return launch_window_tensor_core<Lean>(problem, arguments, stream);
        }
      }
      return status;
    });
  });
}

}  // namespace msda
