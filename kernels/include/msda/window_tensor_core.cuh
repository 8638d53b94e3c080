// Window attention on tensor cores: "tensor_core" of window_choice.h.
//
// Problem   that of window_plain.cuh, for half and bfloat16. Logits, softmax and sums are float.
//           q, times log2(e) / sqrt(d), and the weights are rounded to T. A result in int8 is
//           rounded once, from float.
// Blocks    Persistent. A block has tiles of 16 query rows, of one head or two. The bias of its
//           heads stays in shared memory.
// Warps     Loaders copy q, k and v of one window after the other into the stages of a ring in
//           shared memory. The other warps attend, a tile at a time. A barrier says that a stage is
//           loaded, and another one that all these warps have passed it.
// Tiles     A warp takes kKeys keys in a step: their logits stay in registers, and become the first
//           factor of the product with v there.
// Logits    in units of log2. The sums of q k^T begin with log2(e) * bias minus a bound of the row,
//           and are the exponents.
// Softmax   relative to the bounds, which the keys of the warp's own cells set. Where the weights
//           of a row overflow, the warp repeats its rows and raises the bounds in every step. A
//           product with ones adds up the weights, on tensor cores and over lanes at once.
// Mask      a product of eight more channels, in windows of several regions.
// Shared    the bias, whose rows begin 32 bytes apart modulo 128; rows of q, k and v with their
//           chunks of 16 bytes permuted (chunk_of()). So no bank is read twice.
// Traffic   qkv once, past L1, and the output once; a window that two blocks share, twice. A head's
//           bias once for each of its blocks.
// Limits    those of window_choice.h; shared memory for one stage, up to 111 KB. Deterministic.
#pragma once

#include <algorithm>

#include "msda/cuda_launch.cuh"
#include "msda/quantize.cuh"
#include "msda/tensor_core.cuh"
#include "msda/vector.cuh"
#include "msda/window_cells.cuh"

namespace msda {

// What a kernel is compiled for, and what its blocks consist of.
template <typename T_, int kWindow_, int kHeadDim_, bool kSharedBias_ = true>
struct WindowConfig {
  using T = T_;
  static constexpr int kWindow = kWindow_;
  static constexpr int kHeadDim = kHeadDim_;
  static constexpr int kCells = kWindow * kWindow;       // L
  static constexpr int kRows = (kCells + 15) / 16 * 16;  // with rows that fill the last warp
  static constexpr bool kWide = kHeadDim == 64;          // leaves few registers for logits
  static constexpr int kTiles = kRows / 16;
  static constexpr bool kMany = kTiles == 4 && !kWide;  // warps, whose registers hold fewer logits
  static constexpr int kWarps = kMany ? 16 : 12;        // that attend
  static constexpr int kLoaders = 4;                    // warps
  static constexpr int kThreads = (kWarps + kLoaders) * 32;
  static constexpr int kKeys = kMany ? 32 : kWindow == 12 ? (kWide ? 16 : 48) : kWide ? 32 : 64;
  static constexpr int kUnrolled = kWindow == 12 && !kWide ? 3 : 1;  // steps
  static constexpr int kWindows = std::max(1, kWarps / kTiles);      // of a stage
  static constexpr int kStageTiles = kWindows * kTiles;

  // Logits are in units of log2: kScale * q k^T + log2(e) * (bias + mask).
  static constexpr float kScale = kLog2E / (kHeadDim == 16   ? 4
                                            : kHeadDim == 64 ? 8
                                                             : 5.656854249492381f);

  // Bytes of shared memory. The bias of large forms does not fit: lanes read it from L1 and L2.
  static constexpr bool kSharedBias = kSharedBias_ && (kWindow < 12 || (kWindow == 12 && !kWide));
  static constexpr int kBiasRow = kSharedBias ? kRows * 2 / 128 * 128 + 32 : 2 * kCells;
  static constexpr int kBiasBytes = kSharedBias ? kRows * kBiasRow : 0;
  static constexpr int kRow = 2 * kHeadDim;
  static constexpr int kMatrix = kRows * kRow;  // q, k or v of a window
  static constexpr int kWindowBytes = 3 * kMatrix;
  static constexpr int kStageBytes = kWindows * kWindowBytes;
  static constexpr int kMaxStages = 3;          // more of them slow down the reads from DRAM
  static constexpr int kBarriers = kRows * 16;  // behind the mask
  // The stages begin at a multiple of 128 bytes: copies to other addresses read sectors twice.
  static constexpr int kRing = (kBarriers + (2 * kMaxStages + 2) * 8 + 127) / 128 * 128;
  static constexpr int shared_bytes(int stages, int heads) {
    return kRing + stages * kStageBytes + heads * kBiasBytes;
  }

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

// The barriers of a block.
template <typename Config>
struct WindowBarriers {
  uint64_t loaded[Config::kMaxStages];
  uint64_t used[Config::kMaxStages];
  uint64_t bias[2];  // that of the block's first head is there, and that of the second
};

// How blocks share the tiles. The heads form groups: g, g + groups, ... Block b has a part of group
// b % groups, so that blocks that run together read the same cells.
struct WindowShares {
  int groups, parts;
  int unit;   // tiles: all of a window, or one
  int units;  // of a block; the first `rest` blocks of a group have one more
  int rest;
  int stride;      // windows from one of a block to its next
  bool two_heads;  // whether a part may have tiles of two heads; it never has more

  // tiles   of a window
  // enough  tiles for a block
  WindowShares(const WindowProblem& problem, int tiles, int enough, int multiprocessors) {
    const int64_t all = problem.num_windows() * tiles, heads = problem.num_heads;
    int64_t most = 0, of_group = 0;  // tiles of a block, of a group
    for (int64_t joined = 1; heads % joined == 0; joined *= 2) {
      const int64_t share =
          std::min<int64_t>(multiprocessors * joined / heads, joined * all / enough);
      if (joined > 1 && share < joined) break;
      const int64_t fitting = std::max<int64_t>(share, 1);
      const int64_t longest = (joined * all + fitting - 1) / fitting;
      if (joined > 1 && longest * 20 > most * 19) continue;
      most = longest;
      of_group = joined * all;
      groups = static_cast<int>(heads / joined);
      parts = static_cast<int>(fitting);
      two_heads = joined > 1;
    }
    // Blocks that share a window load it twice. It pays where whole windows would leave a block
    // with a tenth more than its share.
    const int64_t windows = of_group / tiles;
    unit = (windows + parts - 1) / parts * parts * 10 > windows * 11 ? 1 : tiles;
    units = static_cast<int>(of_group / unit / parts);
    rest = static_cast<int>(of_group / unit % parts);
    // Masked windows, which take longer, are neighbours. So each block has every parts-th window.
    stride = unit == tiles && !two_heads ? parts : 1;
  }
};

// A tile of the block.
template <typename Config>
struct WindowTile {
  Window window;
  int number;  // of the window
  int tile;    // of the window's
  int head;
  int turn = 0;    // of the head, among the block's two
  int stage = 0;   // of the ring, where the window is
  int parity = 0;  // of the phase in which it is loaded
  int slot = 0;    // of the window in the stage

  // The window's q, k and v in shared memory.
  __device__ __forceinline__ char* matrices() const {
    return dynamic_shared() + Config::kRing + stage * Config::kStageBytes +
           slot * Config::kWindowBytes;
  }

  __device__ __forceinline__ void next_stage(int stages) {
    if (++stage == stages) {
      stage = 0;
      parity ^= 1;
    }
  }

  // The same tile `count` windows further.
  __device__ __forceinline__ void next_window(const WindowMap& map, const WindowShares& shares,
                                              int count) {
    number += count;
    if (number < map.windows) {
      window = map.next(window, count);
      return;
    }
    do {
      number -= map.windows;
      head += shares.groups;
      ++turn;
    } while (number >= map.windows);
    window = map.window(number);
  }
};

// The cell of a row of a window; -1 in the padding, and beyond the window's rows.
template <typename Config>
__device__ __forceinline__ int cell_of(const WindowMap& map, const Window& window, int row) {
  return row < Config::kCells
             ? static_cast<int>(map.cell(window, row / Config::kWindow, row % Config::kWindow))
             : -1;
}

// A lane of a warp that loads windows. It copies a chunk of some rows of q, k and v.
template <typename Config>
class WindowLoader {
 public:
  using T = typename Config::T;

  __device__ __forceinline__ WindowLoader(const WindowMap& map, const WindowArguments& arguments,
                                          int num_heads, int thread)
      : map_(map),
        arguments_(arguments),
        channels_(num_heads * Config::kHeadDim),
        chunk_(thread % kChunks),
        first_row_(thread / kChunks) {
#pragma unroll
    for (int i = 0; i < kRounds; ++i) {
      const int row = first_row_ + i * kRowStep;
      offsets_[i] = row / Config::kWindow * map.width + row % Config::kWindow;
    }
  }

  // Begins to copy the window of a tile.
  __device__ __forceinline__ void begin(const WindowTile<Config>& at) const {
    const int first_channel = at.head * Config::kHeadDim + chunk_ * 8;
    const T* const qkv = static_cast<const T*>(arguments_.qkv) + first_channel;
    const auto find = [&](int cell) { return qkv + static_cast<int64_t>(cell) * (3 * channels_); };
    char* const target = at.matrices() + chunk_of<Config::kHeadDim>(first_row_, chunk_);
    const Window& window = at.window;
    if (window.row + Config::kWindow <= map_.height &&
        window.column + Config::kWindow <= map_.width) {
      const int first = (window.image * map_.height + window.row) * map_.width + window.column;
#pragma unroll
      for (int i = 0; i < kRounds; ++i) {
        const bool read = first_row_ + i * kRowStep < Config::kCells;
        copy_row(target, i, find(first + (read ? offsets_[i] : 0)), read);
      }
    } else {
      const T* const padding = static_cast<const T*>(arguments_.padding) + first_channel;
#pragma unroll 3
      for (int i = 0; i < kRounds; ++i) {
        const int row = first_row_ + i * kRowStep;
        const int cell = cell_of<Config>(map_, window, row);
        const bool pad = cell < 0 && row < Config::kCells && arguments_.padding != nullptr;
        copy_row(target, i, pad ? padding : find(max(cell, 0)), pad || cell >= 0);
      }
    }
  }

 private:
  static constexpr int kChunks = Config::kHeadDim / 8;
  static constexpr int kRowStep = Config::kLoaders * 32 / kChunks;
  static constexpr int kRounds = (Config::kRows + kRowStep - 1) / kRowStep;
  static_assert(kRowStep % 16 == 0);  // so the chunk has the same place in all of a lane's rows

  // Copies q, k and v of a row, or zeros.
  __device__ __forceinline__ void copy_row(char* target, int round, const T* source,
                                           bool read) const {
    if (Config::kRows % kRowStep != 0 && first_row_ + round * kRowStep >= Config::kRows) return;
    target += round * kRowStep * Config::kRow;
#pragma unroll
    for (int i = 0; i < 3; ++i) {
      copy_async(target + i * Config::kMatrix, source + i * channels_, read);
    }
  }

  const WindowMap& map_;
  const WindowArguments& arguments_;
  const int channels_, chunk_, first_row_;
  int offsets_[kRounds];  // of the rows' cells from the window's first, in cells
};

// A warp that attends.
template <typename Config>
class WindowWarp {
 public:
  using T = typename Config::T;
  static constexpr int kDepth = Config::kHeadDim / 16;  // products of 16 channels
  static constexpr int kPairs = Config::kKeys / 16;     // of 8 keys, in a step
  static constexpr float kSlack = 8;
  static constexpr float kLargestTotal = 1 << 25;  // more than the sum of finite weights in half

  // biases  where those of the block's heads are in shared memory
  __device__ __forceinline__ WindowWarp(const WindowMap& map, const WindowArguments& arguments,
                                        int num_heads, int biases, float output_factor)
      : map_(map),
        arguments_(arguments),
        channels_(num_heads * Config::kHeadDim),
        biases_(biases),
        lane_(static_cast<int>(threadIdx.x) % 32),
        output_factor_(output_factor) {}

  // Attends in a tile, and writes the result.
  __device__ __forceinline__ void attend(const WindowTile<Config>& at) {
    head_ = at.head;
    bias_ = biases_ + at.turn * Config::kBiasBytes;
    const char* const queries = at.matrices();
    const char* const keys = queries + Config::kMatrix;
    const char* const values = keys + Config::kMatrix;
    const int borders = (map_.row_split(at.window) < Config::kWindow ? 2 : 0) +
                        (map_.column_split(at.window) < Config::kWindow ? 1 : 0);
    Rows rows;
    rows.first = at.tile * 16;
    read_queries(rows, queries);
    if (borders == 0) {
      add_keys<false>(keys, values, rows);
    } else {
      read_query_mask(rows, borders);
      add_keys<true>(keys, values, rows);
    }
    const bool fits = rows.total[0] < kLargestTotal && rows.total[2] < kLargestTotal;
    if (__any_sync(kFullMask, !fits)) {
      read_query_mask(rows, borders);
      add_any_keys(keys, values, rows);
    }
    const int cell = cell_of<Config>(map_, at.window, rows.first + lane_ % 16);
    if (output_factor_ == 0) {
      write<T>(rows, cell, 1.0f);
    } else {
      write<int8_t>(rows, cell, output_factor_);
    }
  }

 private:
  // What a lane adds up for two rows of the tile.
  struct Sums {
    float bound[2] = {-1e30f, -1e30f};  // of the logits; not -infinity, which a logit may be
    float total[4] = {};                // the sums of the weights
    float sums[2 * kDepth][4] = {};     // of weights * v
  };

  // What a lane has of the tile. Its two rows are `first` + lane / 4, and 8 further.
  struct Rows : Sums {
    int first;
    uint32_t query[kDepth][4];
    uint32_t mask[2];  // the mask's first factor
  };

  // Sets the bounds by the keys of the tile's own cells, which no mask hides entirely. Then adds up
  // all keys.
  template <bool kMasked>
  __device__ __forceinline__ void add_keys(const char* keys, const char* values, Rows& rows) const {
    float own[2][4];
    make_logits<kMasked, false>(own, keys, rows.first, rows);
#pragma unroll
    for (int half = 0; half < 2; ++half) rows.bound[half] = bound_of(own, half, rows.bound[half]);
#pragma unroll kMasked ? 1 : Config::kUnrolled
    for (int key = 0; key < Config::kRows; key += Config::kKeys) {
      float logits[2 * kPairs][4];
      make_logits<kMasked, true>(logits, keys, key, rows);
      add_values(logits, values, key, rows);
    }
  }

  // The same for any logits: raises the bounds in every step.
  __device__ __forceinline__ void add_any_keys(const char* keys, const char* values,
                                               Rows& rows) const {
    static_cast<Sums&>(rows) = Sums();
#pragma unroll 1
    for (int key = 0; key < Config::kRows; key += Config::kKeys) {
      float logits[2 * kPairs][4];
      make_logits<true, false>(logits, keys, key, rows);
      raise_bounds(logits, rows);
      add_values(logits, values, key, rows);
    }
  }

  // The logits of some keys, minus the bounds if `kRelative`.
  template <bool kMasked, bool kRelative, int kTwice>
  __device__ __forceinline__ void make_logits(float (&logits)[kTwice][4], const char* keys,
                                              int first_key, const Rows& rows) const {
    const int lane_key = key_of(lane_ / 16, lane_ % 8);
#pragma unroll
    for (int pair = 0; pair < kTwice / 2; ++pair) {
      const int key = first_key + 16 * pair;
      read_bias<kRelative>(logits[2 * pair], logits[2 * pair + 1], key, rows);
      if constexpr (kMasked) {
        const uint32_t* const key_mask =
            reinterpret_cast<const uint32_t*>(dynamic_shared()) + lane_;
        multiply_accumulate<T>(logits[2 * pair], rows.mask, key_mask[key * 4]);
        multiply_accumulate<T>(logits[2 * pair + 1], rows.mask, key_mask[(key + 8) * 4]);
      }
#pragma unroll
      for (int depth = 0; depth < kDepth; ++depth) {
        uint32_t words[4];
        load_matrices(words, keys + key * Config::kRow +
                                 chunk_of<Config::kHeadDim>(lane_key, 2 * depth + lane_ / 8 % 2));
        multiply_accumulate<T>(logits[2 * pair], rows.query[depth], words[0], words[1]);
        multiply_accumulate<T>(logits[2 * pair + 1], rows.query[depth], words[2], words[3]);
      }
    }
  }

  // Reads the queries, multiplied by kScale and rounded to T.
  __device__ __forceinline__ void read_queries(Rows& rows, const char* queries) const {
    // kScale as a sum of two numbers of type T, so that only the products are rounded.
    constexpr float scale = Config::kScale;
    const float rounded = widen(narrow<T>(scale));
    const auto high = bits<Packed<T>>(pack<T>(rounded, rounded));
    const auto low = bits<Packed<T>>(pack<T>(scale - rounded, scale - rounded));
#pragma unroll
    for (int depth = 0; depth < kDepth; ++depth) {
      load_matrices(rows.query[depth],
                    queries + rows.first * Config::kRow +
                        chunk_of<Config::kHeadDim>(lane_ % 16, 2 * depth + lane_ / 16));
#pragma unroll
      for (uint32_t& word : rows.query[depth]) {
        const auto pair = bits<Packed<T>>(word);
        word = bits<uint32_t>(multiply_add_pairs(pair, high, multiply_pairs(pair, low)));
      }
    }
  }

  // The mask's first factor. Channels 0 to 3 are the regions, and so are 4 to 7: one where the
  // row's query does not see the region, else zero.
  //
  // borders  bits of the axes along which the window has several regions
  __device__ __forceinline__ void read_query_mask(Rows& rows, int borders) const {
    const int region = lane_ % 2 * 2;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int own = region_of_cell<Config>(map_, rows.first + lane_ / 4 + 8 * half);
      rows.mask[half] = pack<T>(((own ^ region) & borders) != 0 ? 1.0f : 0.0f,
                                ((own ^ (region + 1)) & borders) != 0 ? 1.0f : 0.0f);
    }
  }

  // log2(e) * bias of 16 keys, minus the bounds if `kRelative`.
  template <bool kRelative>
  __device__ __forceinline__ void read_bias(float (&first)[4], float (&second)[4], int key,
                                            const Rows& rows) const {
    const char* const source =
        (Config::kSharedBias
             ? dynamic_shared() + bias_
             : reinterpret_cast<const char*>(head_bias<Config>(arguments_, head_))) +
        (rows.first + lane_ / 4) * Config::kBiasRow + (key + lane_ % 4 * 4) * 2;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const auto* const four = reinterpret_cast<const uint2*>(source + half * 8 * Config::kBiasRow);
      const uint2 words = Config::kSharedBias ? *four : __ldg(four);
      const float2 low = unpack(bits<Packed<T>>(words.x)), high = unpack(bits<Packed<T>>(words.y));
      const float minus = kRelative ? -rows.bound[half] : 0;
      first[2 * half] = fmaf(low.x, kLog2E, minus);
      first[2 * half + 1] = fmaf(low.y, kLog2E, minus);
      second[2 * half] = fmaf(high.x, kLog2E, minus);
      second[2 * half + 1] = fmaf(high.y, kLog2E, minus);
    }
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
    most = max_over_group(most, 4);  // over the lanes that share a row
    return most > bound ? most + kSlack : bound;
  }

  // Raises bounds that the logits exceed, and scales what the rows have added up. Subtracts the
  // bounds from the logits.
  __device__ __forceinline__ void raise_bounds(float (&logits)[2 * kPairs][4], Rows& rows) const {
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
#pragma unroll
      for (int i = 0; i < 2 * kPairs; ++i) {
        logits[i][2 * half] -= bound;
        logits[i][2 * half + 1] -= bound;
      }
    }
  }

  // Logits, minus the bounds, become weights. sums += weights * v, total += weights * 1: a
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
        const float* const two = &logits[2 * pair + i / 2][i % 2 * 2];
        weights[i] = pack<T>(exp2_approx(two[0]), exp2_approx(two[1]));
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
  // that each stores four neighbours. own_cell: of row lane % 16 of the tile.
  template <typename Result>
  __device__ __forceinline__ void write(const Rows& rows, int own_cell, float factor) const {
    const auto lane = static_cast<unsigned>(no_hoist(lane_));
    const bool odd = lane % 2 == 1;
    Result* const output = static_cast<Result*>(arguments_.output) + head_ * Config::kHeadDim +
                           lane % 4 / 2 * 4 + (odd ? 8 : 0);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const float scale = reciprocal_approx(rows.total[2 * half]) * factor;
      const int cell = __shfl_sync(kFullMask, own_cell, lane / 4 + 8 * half);
      Result* const address = output + static_cast<int64_t>(max(cell, 0)) * channels_;
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

  const WindowMap& map_;
  const WindowArguments& arguments_;
  const int channels_, biases_, lane_;
  const float output_factor_;  // 1 / output_scale; 0: the result has type T
  int head_;                   // of the tile
  int bias_;                   // where the head's is in shared memory
};

// Loads a head's bias into shared memory, then arrives. The threads that attend call.
template <typename Config>
__device__ __forceinline__ void load_bias(char* shared, const typename Config::T* bias,
                                          uint64_t* barrier) {
  using T = typename Config::T;
  constexpr int kThreads = Config::kWarps * 32;
  if constexpr (Config::kRows == Config::kCells) {
    constexpr int kChunks = Config::kRows / 8;
    for (int i = static_cast<int>(threadIdx.x); i < Config::kRows * kChunks; i += kThreads) {
      copy_async(shared + i / kChunks * Config::kBiasRow + i % kChunks * 16, bias + i * 8, true);
    }
    arrive_after_copies(barrier);
  } else {
    for (int i = static_cast<int>(threadIdx.x); i < Config::kRows * Config::kRows; i += kThreads) {
      const int row = i / Config::kRows, key = i % Config::kRows;
      T number = narrow<T>(key < Config::kCells ? 0 : -INFINITY);
      if (row < Config::kCells && key < Config::kCells) number = bias[row * Config::kCells + key];
      reinterpret_cast<T*>(shared + row * Config::kBiasRow)[key] = number;
    }
    arrive(barrier);
  }
}

// Writes the mask's second factor for all keys. The two channels of a key's region add up to
// log2(e) * kWindowMask: the first has its rounding to T, the second has the remainder.
template <typename Config>
__device__ __forceinline__ void make_mask(char* shared, const WindowMap& map) {
  using T = typename Config::T;
  for (int i = static_cast<int>(threadIdx.x); i < Config::kRows * 4;
       i += static_cast<int>(blockDim.x)) {
    const int key = i / 64 * 16 + key_of(i / 32 % 2, i / 4 % 8), channel = i % 4 * 2;
    const float rounded = widen(narrow<T>(kWindowMask * kLog2E));
    const float part = channel < 4 ? rounded : kWindowMask * kLog2E - rounded;
    const int region = region_of_cell<Config>(map, key);
    reinterpret_cast<uint32_t*>(shared)[i] =
        pack<T>(region == channel % 4 ? part : 0.0f, region == channel % 4 + 1 ? part : 0.0f);
  }
}

template <typename Config>
__global__ void __launch_bounds__(Config::kThreads, 1)
    window_tensor_core_kernel(const __grid_constant__ WindowMap map,
                              const __grid_constant__ WindowArguments arguments,
                              const __grid_constant__ WindowShares shares, int num_heads,
                              int stages, float output_factor) {
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 800
  char* const shared = dynamic_shared();
  auto* const barriers = reinterpret_cast<WindowBarriers<Config>*>(shared + Config::kBarriers);
  const int thread = static_cast<int>(threadIdx.x), block = static_cast<int>(blockIdx.x);
  const int warp = __shfl_sync(kFullMask, thread / 32, 0);
  if (thread == 0) {
    for (int i = 0; i < stages; ++i) {
      init_barrier(&barriers->loaded[i], Config::kLoaders * 32);
      init_barrier(&barriers->used[i], Config::kWarps);
    }
    for (uint64_t& barrier : barriers->bias) init_barrier(&barrier, Config::kWarps * 32);
  }
  make_mask<Config>(shared, map);  // add_any_keys() reads it without shift too
  __syncthreads();

  const int part = divide(block, shares.groups), group = block - part * shares.groups;
  const int count = (shares.units + (part < shares.rest ? 1 : 0)) * shares.unit;
  const int first_unit = shares.stride > 1 ? part : part * shares.units + min(part, shares.rest);
  const int begin = first_unit * shares.unit;
  const int before = divide(begin / Config::kTiles, map.windows);  // heads of the group
  const int biases = Config::kRing + stages * Config::kStageBytes;
  WindowTile<Config> at;
  at.number = begin / Config::kTiles - before * map.windows;
  at.window = map.window(at.number);
  at.tile = begin % Config::kTiles;
  at.head = group + before * shares.groups;
  int left = at.tile + count;  // tiles, with those of another block in the first window

  begin_next_kernel();
  wait_for_last_kernel();
  if (warp < Config::kWarps) {
    if constexpr (Config::kSharedBias) {
      const bool two_heads = count > (map.windows - at.number) * Config::kTiles - at.tile;
      for (int i = 0; i < (two_heads ? 2 : 1); ++i) {
        load_bias<Config>(shared + biases + i * Config::kBiasBytes,
                          head_bias<Config>(arguments, at.head + i * shares.groups),
                          &barriers->bias[i]);
      }
    }
    WindowWarp<Config> worker(map, arguments, num_heads, biases, output_factor);
    int first = 0, reached = 0;  // windows of the block: the first of the stage, and that of `at`
    for (int tile = at.tile + warp; left > 0; left -= Config::kStageTiles) {
      wait_for_phase(&barriers->loaded[at.stage], at.parity);
      for (; tile < min(left, Config::kStageTiles); tile += Config::kWarps) {
        at.slot = Config::kWindows == 1 ? 0 : tile / Config::kTiles;
        at.tile = tile - at.slot * Config::kTiles;
        if (first + at.slot > reached) {
          at.next_window(map, shares, (first + at.slot - reached) * shares.stride);
          reached = first + at.slot;
        }
        if constexpr (Config::kSharedBias) wait_for_phase(&barriers->bias[at.turn], 0);
        worker.attend(at);
      }
      __syncwarp();
      // A warp without a tile arrives too. Else the ring could lap a slow warp, which would miss
      // the phase of its window and wait for one that never ends.
      if (thread % 32 == 0) arrive(&barriers->used[at.stage]);
      tile -= Config::kStageTiles;
      first += Config::kWindows;
      at.next_stage(stages);
    }
  } else {
    const WindowLoader<Config> loader(map, arguments, num_heads, thread - Config::kWarps * 32);
    for (; left > 0; left -= Config::kStageTiles) {
      wait_for_phase(&barriers->used[at.stage], at.parity ^ 1);
      for (at.slot = 0; at.slot < Config::kWindows && at.slot * Config::kTiles < left; ++at.slot) {
        loader.begin(at);
        at.next_window(map, shares, shares.stride);
      }
      arrive_after_copies(&barriers->loaded[at.stage]);
      at.next_stage(stages);
    }
  }
  wait_for_copies();  // A warp without a tile may come here before its part of the bias is loaded.
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
  const WindowShares shares(problem, Config::kTiles, Config::kWarps, multiprocessors);
  const int heads = shares.two_heads ? 2 : 1;
  const int fitting = (shared_limit - Config::shared_bytes(0, heads)) / Config::kStageBytes;
  if (major < 8 || fitting < 1) return cudaErrorNotSupported;

  const int stages = std::min(fitting, Config::kMaxStages);
  const auto kernel = window_tensor_core_kernel<Config>;
  cudaLaunchConfig_t config = launch_config(
      dim3(static_cast<unsigned>(shares.groups * shares.parts)), Config::kThreads, stream);
  status = use_shared_memory(config, kernel, Config::shared_bytes(stages, heads));
  if (status != cudaSuccess) return status;
  return launch_early(config, kernel, WindowMap(problem), arguments, shares,
                      static_cast<int>(problem.num_heads), stages, problem.output_factor());
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
      if constexpr (Config::kSharedBias && Config::shared_bytes(1, 2) > 99 * 1024) {
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
