// Forward of multi-scale deformable attention for the usual head sizes.
//
// Problem   as forward.cuh. What fits here and what goes to another kernel is told by choose.h.
// Layout    as forward.cuh; value and out lie at multiples of 16 bytes, and so does every head.
// Threads   kLanes neighbouring lanes, a group, make one (n,q,m), each of them kChunks times 16
//           bytes of its channels. A block has kHeads neighbouring heads, as many as share a
//           128-byte line of value, of a tile of kQueries queries (tiles.cuh).
//           A lane works out samples (softmax, cells, corner weights) and hands them to the other
//           lanes of its group by shuffles; then every lane reads its part of the four corners. Of
//           four levels with four points each a lane works out one level whole, for then a group
//           reads its inputs in one piece; of levels left over, and of any other number of points,
//           one point at a time.
// Blocks    as many as the GPU holds at once; each goes from tile to tile, heads last, so that all
//           blocks sample the same heads and find them in L2. Two neighbouring blocks are a
//           cluster, where there are clusters: then they are on one multiprocessor or on two close
//           ones, which share what neighbouring tiles sample.
// L1        bounds the kernel. It serves 128 bytes a clock only when what eight neighbouring lanes
//           read lies in different banks. Their (n,q,m) sample unrelated cells; but the heads of a
//           line differ in their place in it, and where a lane has two chunks, every second group
//           begins with the other one. Locations and weights, read once, make way for cells first;
//           16-bit cells of the coarsest level stay longest in the fused kernels that know it when
//           compiled.
// Edges     Samples are inner ones (sample.cuh): four cells inside of the level are read, always,
//           for predicates cost registers, and a branch would keep the compiler from having the
//           next sample's loads under way. What a sample does not touch has the weight zero. Only
//           if a sum is NaN in the end could that have been an infinite number, and the warp
//           begins again, with outlined samples; so it does where a level has one row or column.
// Sums      float values in float. Of 16-bit values the four corners of a sample are blended in
//           packed 16-bit arithmetic, with weights relative to the largest of the (n,q,m) or to
//           the sum of its softmax, and the samples added up in float.
// Limits    those of choose.h. Deterministic: no atomics, a fixed order of sums.
#pragma once

#include <algorithm>

#include "msda/launch_kernel.cuh"
#include "msda/sample.cuh"

namespace msda {

// What a kernel is compiled for.
template <typename T, int kHeadDim_, Locations kLocations_, bool kWide_, int kNumHeads_,
          int kLevels_, bool kFew_, int kThreads_, int kBlocks_, int kFlight_>
struct GroupConfig {
  using Type = T;
  static constexpr int kHeadDim = kHeadDim_;
  static constexpr Locations kLocations = kLocations_;
  static constexpr bool kFused = kLocations != Locations::kGiven;  // softmax and locations inside
  static constexpr bool kWide = kWide_;         // locations and weights are float, not T
  static constexpr int kNumHeads = kNumHeads_;  // M; 0: any, with slower addresses
  static constexpr int kLevels = kLevels_;      // L, with four points each; 0: any numbers of both
  static constexpr bool kFew = kFew_;           // all blocks fit on the GPU together
  static constexpr int kThreads = kThreads_;    // of a block
  static constexpr int kBlocks = kBlocks_;      // that fit on a multiprocessor together
  static constexpr int kFlight = kFlight_;      // samples whose corners are read together

  using Input = std::conditional_t<kWide, float, T>;          // of locations and weights
  static constexpr int kVec = 16 / sizeof(T);                 // channels of a chunk
  static constexpr int kChunks = sizeof(T) / 2;               // of a lane
  static constexpr int kLanes = kHeadDim / (kVec * kChunks);  // of a group
  static constexpr int kHeadBytes = kHeadDim * sizeof(T);
  static constexpr int kHeads = kHeadBytes < 128 ? 128 / kHeadBytes : 1;  // of a block
  static constexpr int kQueries = kThreads / kLanes / kHeads;             // of a tile
  static constexpr int kTileHeight = kQueries / kTileWidth;
  // Whether samples are outlined from the beginning, for want of registers.
  static constexpr bool kAlwaysExact = sizeof(T) == 4 && kLevels == 0;
  // Of 16-bit values: the weights of an (n,q,m) are divided by its largest, be it a softmax's or
  // not, for the range of 16 bits.
  static constexpr bool kRelative = kFused || sizeof(T) == 2;

  static_assert(kLanes >= 2 && kLanes <= 32 && (kLanes & (kLanes - 1)) == 0);
  static_assert(kTileHeight >= 1 && kQueries == kTileHeight * kTileWidth);
  static_assert(kLanes % kFlight == 0 || kFlight % kLanes == 0);
  static_assert(kLevels == 0 || kLanes == 4);
};

// Keeps the compiler from taking a pointer apart again, into what is the same for all lanes and
// what is not, which costs two additions for every address made from it.
__device__ __forceinline__ const char* in_register(const char* pointer) {
#if defined(__CUDA_ARCH__)
  asm("" : "+l"(pointer));
#endif
  return pointer;
}

// The same of a number: a condition that it stands for does not occupy a predicate.
__device__ __forceinline__ uint32_t in_register(uint32_t number) {
#if defined(__CUDA_ARCH__)
  asm("" : "+r"(number));
#endif
  return number;
}

// Keeps the compiler from working out before a loop what the number gives in it: registers are
// scarce.
__device__ __forceinline__ int again(int number) {
#if defined(__CUDA_ARCH__)
  asm volatile("" : "+r"(number));
#endif
  return number;
}

inline constexpr uint32_t kNoItem = UINT32_MAX;

inline constexpr float kLog2E = 1.4426950408889634f;

// 2^x for x <= 0, as exact as __expf(), which takes care of numbers that do not occur here.
__device__ __forceinline__ float exp2_of(float x) {
#if defined(__CUDA_ARCH__)
  float power;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(power) : "f"(x));
  return power;
#else
  return exp2f(x);
#endif
}

// 16 bytes of a cell. kLine: what comes from memory comes to L2 as a whole line, the cell of the
// neighbouring head with it. stays: it leaves L1 last.
template <bool kLine>
__device__ __forceinline__ uint4 load_corner(const char* address, bool stays) {
#if defined(__CUDA_ARCH__)
  if constexpr (kLine) {
    uint4 words;
    if (stays) {
      asm("ld.global.nc.L1::evict_last.L2::128B.v4.u32 {%0, %1, %2, %3}, [%4];"
          : "=r"(words.x), "=r"(words.y), "=r"(words.z), "=r"(words.w)
          : "l"(address));
    } else {
      asm("ld.global.nc.L2::128B.v4.u32 {%0, %1, %2, %3}, [%4];"
          : "=r"(words.x), "=r"(words.y), "=r"(words.z), "=r"(words.w)
          : "l"(address));
    }
    return words;
  }
#endif
  return __ldg(reinterpret_cast<const uint4*>(address));
}

// 16 bytes of the output.
template <typename T, int kVec>
__device__ __forceinline__ void store_chunk(T* address, const float (&sums)[kVec]) {
  uint4 words;
  if constexpr (std::is_same_v<T, float>) {
    words = make_uint4(__float_as_uint(sums[0]), __float_as_uint(sums[1]), __float_as_uint(sums[2]),
                       __float_as_uint(sums[3]));
  } else {
    words = make_uint4(pack<T>(sums[0], sums[1]), pack<T>(sums[2], sums[3]),
                       pack<T>(sums[4], sums[5]), pack<T>(sums[6], sums[7]));
  }
  __stcg(reinterpret_cast<uint4*>(address), words);  // an assignment becomes four stores
}

// The weights of one (n,q,m), relative to the largest.
template <typename Config>
struct RelativeWeights {
  float largest = Config::kFused ? -INFINITY : 0.0f;
  float factor = 1.0f;  // fused: the largest times log2(e); else what weights are multiplied by

  __device__ __forceinline__ void see(float weight) {
    largest = fmaxf(largest, Config::kFused ? weight : fabsf(weight));
  }
  // After every lane has seen its weights.
  __device__ __forceinline__ void finish() {
#pragma unroll
    for (int distance = Config::kLanes / 2; distance > 0; distance /= 2) {
      largest = fmaxf(largest, __shfl_xor_sync(kWholeWarp, largest, distance));
    }
    if constexpr (Config::kFused) {
      factor = largest * kLog2E;
    } else {
      // Whose reciprocal is neither infinite nor zero.
      const bool usual = largest > 1e-37f && largest < 1e37f;
      largest = usual ? largest : 1.0f;
      factor = 1.0f / largest;
    }
  }
  __device__ __forceinline__ float operator()(float weight) const {
    if constexpr (Config::kFused) {
      return exp2_of(fmaf(weight, kLog2E, -factor));
    } else {
      return weight * factor;
    }
  }
};

// One (n,q,m) in the hands of a lane: what it reads and what it adds up. kExact: samples are
// outlined, not inner.
template <typename Config, bool kExact>
class GroupLane {
 public:
  using T = typename Config::Type;
  using Input = typename Config::Input;
  static constexpr int kLanes = Config::kLanes;
  static constexpr int kChunks = Config::kChunks;
  static constexpr bool kFused = Config::kFused;
  static constexpr bool kSmall = sizeof(T) == 2;
  // Whether the sum of a softmax is known before the samples are made, so that no register has to
  // keep it. (Few queries wait for nothing that can wait.)
  static constexpr bool kDividesFirst =
      kFused && kSmall && Config::kLevels > 0 && !Config::kFew && !kExact;
  // Whether all samples are made before the first is added up, not those of levels left one by one:
  // measured.
  static constexpr bool kMakesFirst = kSmall && !kFused;
  // Whether registers do not suffice for pointers in parts: measured.
  static constexpr bool kWholePointers = !kSmall && Config::kLevels > 0 && !Config::kFew;
  static constexpr bool kBoxes = Config::kLocations == Locations::kReferenceBoxes;
  static constexpr int kReferenceSize = kBoxes ? 4 : 2;

  // item: (n,q,m); row: (n,q). value: of the image's first cell, the lane's chunk 0 and, with more
  // than one, the others, in the order of the lane's turn.
  __device__ __forceinline__ GroupLane(const Problem& problem, const ForwardArguments& arguments,
                                       const SharedLevels& shared, uint32_t item, uint32_t row,
                                       const char* const (&value)[kChunks], int32_t cell_bytes)
      : problem_(problem), shared_(shared), cell_bytes_(cell_bytes) {
    const auto at = [](const void* start, uint32_t index, uint32_t bytes) {
      return static_cast<const char*>(start) + static_cast<uint64_t>(index) * bytes;
    };
    // Known when the kernel is compiled, where levels are: `add_levels`.
    const uint32_t num_levels = Config::kLevels > 0 ? static_cast<uint32_t>(Config::kLevels)
                                                    : static_cast<uint32_t>(problem.num_levels);
    const uint32_t num_points =
        Config::kLevels > 0 ? 4 * num_levels : static_cast<uint32_t>(problem.total_points);
    // A query's heads follow each other; behind the last there may be a gap.
    const auto inputs_at = [&](const void* start, int64_t stride, uint32_t numbers) {
      const uint32_t item_bytes = num_points * numbers * sizeof(Input);
      const uint32_t num_heads =
          Config::kNumHeads > 0 ? Config::kNumHeads : static_cast<uint32_t>(problem.num_heads);
      const uint32_t gap = static_cast<uint32_t>(stride) * sizeof(Input) - num_heads * item_bytes;
      const char* const inputs = at(at(start, item, item_bytes), row, gap);
      return reinterpret_cast<const Input*>(kWholePointers ? in_register(inputs) : inputs);
    };
    const uint32_t row_bytes = num_levels * kReferenceSize * sizeof(float);
    locations_ = inputs_at(arguments.sampling_locations, problem.location_stride, 2);
    weights_ = inputs_at(arguments.attention_weights, problem.weight_stride, 1);
    references_ = reinterpret_cast<const float*>(at(arguments.reference_points, row, row_bytes));
#pragma unroll
    for (int k = 0; k < kChunks; ++k) value_[k] = value[k];
  }

  // Levels of four points.
  __device__ __forceinline__ void add_levels() {
    // A whole level for each lane, as often as there are four; then one point of each level left.
    // (Registers do not suffice for whole levels of floats.)
    constexpr int kRounds = kSmall ? Config::kLevels / 4 : 0;
    constexpr int kWhole = kRounds * 4;
    constexpr int kRest = Config::kLevels - kWhole;
    Raw<Input, 8> whole_location[kRounds > 0 ? kRounds : 1];
    Raw<Input, 4> whole_weight[kRounds > 0 ? kRounds : 1];
    Raw<Input, 2> location[kRest > 0 ? kRest : 1];
    Raw<Input, 1> weight[kRest > 0 ? kRest : 1];
    Reference whole_reference[kRounds > 0 ? kRounds : 1];
    Reference reference[kRest > 0 ? kRest : 1];
#pragma unroll
    for (int r = 0; r < kRounds; ++r) {
      const int first = (r * 4 + lane()) * 4;
      whole_weight[r].load(weights_ + first);
      whole_location[r].load(locations_ + 2 * first);
      whole_reference[r] = load_reference(r * 4 + lane());
    }
#pragma unroll
    for (int i = 0; i < kRest; ++i) {
      weight[i].load(weights_ + (kWhole + i) * 4 + lane());
      location[i].load(locations_ + 2 * ((kWhole + i) * 4 + lane()));
    }
    if constexpr (kRest > 0) reference[0] = load_reference(kWhole);

    // All weights that the lane holds: of its whole levels, then of the levels left. (Both indices
    // stay inside of their arrays, whichever is taken.)
    constexpr int kWeights = kRounds * 4 + kRest;
    float own_weight[kWeights];
#pragma unroll
    for (int i = 0; i < kWeights; ++i) {
      own_weight[i] = i < kWhole ? whole_weight[i / 4 * (kRounds > 0)][i % 4]
                                 : weight[i < kWhole ? 0 : i - kWhole][0];
      if constexpr (Config::kRelative) relative_.see(own_weight[i]);
    }
    if constexpr (Config::kRelative) relative_.finish();
    if constexpr (kDividesFirst) {
#pragma unroll
      for (int i = 0; i < kWeights; ++i) {
        own_weight[i] = relative_(own_weight[i]);
        total_weight_ += own_weight[i];
      }
      const float share = 1.0f / sum_over_lanes(total_weight_);
#pragma unroll
      for (int i = 0; i < kWeights; ++i) own_weight[i] *= share;
    }

    Sample<T> whole[kRounds > 0 ? kRounds : 1][4];
    Sample<T> rest[kMakesFirst && kRest > 0 ? kRest : 1];
    const auto make_rest = [&](int i) {
      return make_own(location[i][0], location[i][1], own_weight[kWhole + i], reference[i],
                      level_at(kWhole + i), 4);
    };
#pragma unroll
    for (int r = 0; r < kRounds; ++r) {
      const auto level = level_at(r * 4 + lane());
#pragma unroll
      for (int p = 0; p < 4; ++p) {
        whole[r][p] = make_own(whole_location[r][2 * p], whole_location[r][2 * p + 1],
                               own_weight[r * 4 + p], whole_reference[r], level, 4);
      }
    }
    if constexpr (kMakesFirst) {
#pragma unroll
      for (int i = 0; i < kRest; ++i) rest[i] = make_rest(i);
    }

#pragma unroll
    for (int r = 0; r < kRounds; ++r) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        add_samples<4, false>([&](int p) { return Owned{whole[r][p], i}; },
                              level_at(r * 4 + i).columns, 4, is_last(r * 4 + i));
      }
    }
#pragma unroll
    for (int i = 0; i < kRest; ++i) {
      if constexpr (!kMakesFirst) {
        if (i + 1 < kRest) reference[i + 1] = load_reference(kWhole + i + 1);
        rest[0] = make_rest(i);
      }
      add_samples<4, false>([&](int p) { return Owned{rest[kMakesFirst ? i : 0], p}; },
                            level_at(kWhole + i).columns, 4, is_last(kWhole + i));
    }
  }

  // Any levels: a lane works out every kLanes-th point of a level.
  __device__ __forceinline__ void add_any_levels() {
    const int num_levels = static_cast<int>(problem_.num_levels);
    const int num_points = static_cast<int>(problem_.total_points);
    Raw<Input, 2> next_location{};
    Raw<Input, 1> next_weight{};
    const auto load_point = [&](int point) {
      if (point >= num_points) return;
      next_location.load(locations_ + 2 * point);
      next_weight.load(weights_ + point);
    };
    load_point(lane());
    Reference next_reference = load_reference(0);
    if constexpr (Config::kRelative) {
#pragma unroll 4
      for (int i = lane(); i < num_points; i += kLanes) relative_.see(widen(weights_[i]));
      relative_.finish();
    }
    int level_end = 0;
#pragma unroll 1
    for (int level_index = 0; level_index < num_levels; ++level_index) {
      const auto level = level_at(level_index);
      const int level_points = problem_.points_per_level[level_index];
      const int level_start = level_end;
      level_end += level_points;
      const Reference reference = next_reference;
      if (level_index + 1 < num_levels) next_reference = load_reference(level_index + 1);
      for (int first = 0; first < level_points; first += kLanes) {
        Sample<T> own;
        if (first + lane() < level_points) {
          own = make_own(next_location[0], next_location[1], next_weight[0], reference, level,
                         level_points);
        }
        // A level's last round may be short; the next level begins with the first lane again.
        load_point(level_start + min(first + kLanes, level_points) + lane());
        add_samples<kLanes, true>([&](int p) { return Owned{own, p}; }, level.columns,
                                  level_points - first);
      }
    }
  }

  __device__ __forceinline__ void add() {
    if constexpr (Config::kLevels > 0 && !kExact) {
      add_levels();
    } else {
      add_any_levels();
    }
  }

  // Whether a sum is NaN.
  __device__ __forceinline__ bool is_spoiled() const {
    float sum = 0;
#pragma unroll
    for (int k = 0; k < kChunks; ++k) {
#pragma unroll
      for (int i = 0; i < Config::kVec; ++i) sum += sums_[k][i];
    }
    return sum != sum;
  }

  // Writes the lane's channels; output: of the (n,q,m), null: nothing is written.
  __device__ __forceinline__ void finish(T* output, int turn) {
    float scale = 1.0f;
    if constexpr (kFused && !kDividesFirst) {
      scale = 1.0f / sum_over_lanes(total_weight_);
    } else if constexpr (!kFused && Config::kRelative) {
      scale = relative_.largest;
    }
#pragma unroll
    for (int k = 0; k < kChunks; ++k) {
#pragma unroll
      for (int i = 0; i < Config::kVec; ++i) sums_[k][i] *= scale;
      if (output != nullptr) {
        store_chunk(output + ((k ^ turn) * kLanes + lane()) * Config::kVec, sums_[k]);
      }
    }
  }

 private:
  struct Reference {
    Raw<float, 2> center{};
    Raw<float, 2> size{};
  };

  __device__ __forceinline__ static int lane() { return threadIdx.x % kLanes; }

  __device__ __forceinline__ static float sum_over_lanes(float sum) {
#pragma unroll
    for (int distance = kLanes / 2; distance > 0; distance /= 2) {
      sum += __shfl_xor_sync(kWholeWarp, sum, distance);
    }
    return sum;
  }

  __device__ __forceinline__ Reference load_reference(int level_index) const {
    Reference reference;
    if constexpr (kFused) {
      reference.center.load(references_ + level_index * kReferenceSize);
      if constexpr (kBoxes) reference.size.load(references_ + level_index * kReferenceSize + 2);
    }
    return reference;
  }

  using LevelOf = std::conditional_t<kExact, SharedLevel, InnerLevel>;
  __device__ __forceinline__ const LevelOf& level_at(int index) const {
    if constexpr (kExact) {
      return shared_.level[index];
    } else {
      return shared_.inner[index];
    }
  }

  // The lane's sample, from what it has read.
  __device__ __forceinline__ Sample<T> make_own(float first, float second, float weight,
                                                const Reference& reference, const LevelOf& level,
                                                int level_points) {
    const float width = level.width();
    const float height = level.height();
    if constexpr (Config::kRelative && !kDividesFirst) weight = relative_(weight);
    const auto make = [&](auto x, auto y) {
      if constexpr (kExact) {
        return make_sample<T>(place_of(x, width), place_of(y, height), weight, level);
      } else {
        return make_sample<T>(span_of(x, width), span_of(y, height), weight, level);
      }
    };
    if constexpr (kFused) {
      if constexpr (!kDividesFirst) total_weight_ += weight;
      float2 cells = make_float2(1.0f, 1.0f);  // of an offset of one
      if constexpr (kBoxes) {
        cells = make_float2(cells_per_offset(reference.size[0], level_points, width),
                            cells_per_offset(reference.size[1], level_points, height));
      }
      return make(offset_coordinate<T>(reference.center[0], first, cells.x, width),
                  offset_coordinate<T>(reference.center[1], second, cells.y, height));
    } else {
      return make(location_coordinate<T>(first, width), location_coordinate<T>(second, height));
    }
  }

  // A sample that a lane of the group holds.
  struct Owned {
    const Sample<T>& sample;
    int lane;
    __device__ __forceinline__ uint32_t place() const {
      return __shfl_sync(kWholeWarp, sample.place, lane, kLanes);
    }
  };

  // The coarsest level is small enough to stay in L1: measured. (Known when the kernel is
  // compiled.)
  __device__ __forceinline__ static bool is_last(int level_index) {
    return kFused && kSmall && level_index + 1 == Config::kLevels;
  }

  // Adds samples of one level, whose cells stay in L1 or do not: kMost, or (kCounts) `count` of
  // them.
  template <int kMost, bool kCounts, typename OwnedAt>
  __device__ __forceinline__ void add_samples(const OwnedAt& owned_at, int32_t columns, int count,
                                              bool stays = false) {
    constexpr int kFlight = Config::kFlight < kMost ? Config::kFlight : kMost;
    Sample<T> sample[kFlight];
    // Places come first, while the corners before them are on their way: addresses wait for them.
    const auto take_places = [&](int start) {
#pragma unroll
      for (int j = 0; j < kFlight; ++j) sample[j].place = again(owned_at(start + j).place());
    };
    take_places(0);
#pragma unroll
    for (int start = 0; start < kMost; start += kFlight) {
      if (kCounts && start >= count) break;
#pragma unroll
      for (int j = 0; j < kFlight; ++j) {
        const uint32_t place = sample[j].place;
        const int32_t top_left = kExact ? cell_of(place) : static_cast<int32_t>(place);
#pragma unroll
        for (int k = 0; k < kChunks; ++k) {
          const char* const top = value_[k] + static_cast<int64_t>(top_left) * cell_bytes_;
          const char* const bottom =
              value_[k] + static_cast<int64_t>(top_left + columns) * cell_bytes_;
          const char* const address[4] = {top, top + cell_bytes_, bottom, bottom + cell_bytes_};
#pragma unroll
          for (int c = 0; c < 4; ++c) {
            if (!kExact || has_corner(place, c)) {
              // Many queries want both heads of a line at the same time. Few are scattered, and
              // each head of theirs reads cells of its own: a line would bring as much again for
              // nothing.
              corner_[j][k][c] = load_corner<!Config::kFew>(address[c], stays);
            }
          }
        }
      }
      Sample<T> weighted[kFlight];
#pragma unroll
      for (int j = 0; j < kFlight; ++j) {
        const Owned owned = owned_at(start + j);
        weighted[j].place = sample[j].place;
        weights_from_lane<kLanes>(owned.sample, owned.lane, weighted[j]);
      }
      if (start + kFlight < kMost) take_places(start + kFlight);
#pragma unroll
      for (int j = 0; j < kFlight; ++j) {
#pragma unroll
        for (int k = 0; k < kChunks; ++k) blend<kExact>(weighted[j], corner_[j][k], sums_[k]);
      }
    }
  }

  const Problem& problem_;
  const SharedLevels& shared_;
  const Input* locations_;
  const Input* weights_;
  const float* references_;
  const char* value_[kChunks];
  int32_t cell_bytes_;
  float sums_[kChunks][Config::kVec] = {};
  uint4 corner_[Config::kFlight][kChunks][4] = {};
  RelativeWeights<Config> relative_;
  float total_weight_ = 0;
};

template <typename Config>
__global__ void __launch_bounds__(Config::kThreads, Config::kBlocks)
    forward_group_kernel(const __grid_constant__ Problem problem,
                         const __grid_constant__ ForwardArguments arguments) {
  using T = typename Config::Type;
  constexpr int kLanes = Config::kLanes;
  constexpr int kChunks = Config::kChunks;

  __shared__ SharedLevels shared;
  share_levels<Config>(problem, arguments, shared);

  const int item_of_block = threadIdx.x / kLanes;
  const int num_heads =
      Config::kNumHeads > 0 ? Config::kNumHeads : static_cast<int>(problem.num_heads);
  const int head_groups = (num_heads + Config::kHeads - 1) / Config::kHeads;
  const int32_t cell_bytes = num_heads * Config::kHeadBytes;
  // The groups of eight lanes begin with different chunks, so that the lanes' banks differ.
  const int turn = (threadIdx.x % 8) / (kLanes * Config::kHeads) % kChunks;

  // A tile for some heads of one image; true: nothing has been written, for it has to be exact.
  const auto take = [&](auto exact, int tile, int batch, int head_group) {
    if (head_group >= head_groups) {
      batch = divide(head_group, head_groups);
      head_group -= batch * head_groups;
    }
    const int head = head_group * Config::kHeads + item_of_block % Config::kHeads;
    const int query = query_of_tile<Config>(shared, static_cast<int>(problem.num_queries), tile,
                                            item_of_block / Config::kHeads);
    const bool writes = query >= 0 && head < num_heads;
    // Lanes without work repeat the first query and head: the shuffles need every lane.
    const uint32_t row = static_cast<uint32_t>(batch * problem.num_queries) + (writes ? query : 0);
    const uint32_t item = row * num_heads + (writes ? head : 0);
    const uint32_t written = in_register(writes ? item : kNoItem);
    const char* value[kChunks];
#pragma unroll
    for (int k = 0; k < kChunks; ++k) {
      value[k] = in_register(static_cast<const char*>(arguments.value) +
                             batch * problem.num_cells * cell_bytes +
                             (head < num_heads ? head : 0) * Config::kHeadBytes +
                             ((k ^ turn) * kLanes + threadIdx.x % kLanes) * 16);
    }
    constexpr bool kExact = decltype(exact)::value;
    GroupLane<Config, kExact> lane(problem, arguments, shared, item, row, value, cell_bytes);
    lane.add();
    if (!kExact && __any_sync(kWholeWarp, lane.is_spoiled() || shared.narrow)) return true;
    T* const output = reinterpret_cast<T*>(static_cast<char*>(arguments.output) +
                                           static_cast<uint64_t>(written) * Config::kHeadBytes);
    lane.finish(written == kNoItem ? nullptr : output, turn);
    return false;
  };
  constexpr std::bool_constant<Config::kAlwaysExact> kFirst;

  if constexpr (Config::kFew) {
    for (int tile = blockIdx.x; tile < shared.num_tiles; tile += gridDim.x) {
      if (take(kFirst, tile, blockIdx.z, blockIdx.y)) {
        take(std::true_type(), tile, blockIdx.z, blockIdx.y);
      }
    }
  } else {
    const int outers = head_groups * static_cast<int>(problem.batch_size);
    int outer = 0;  // head groups, then images
    for (int tile = blockIdx.x;; tile += gridDim.x) {
      for (; tile >= again(shared.num_tiles); tile -= again(shared.num_tiles)) ++outer;
      if (outer >= outers) break;
      if (take(kFirst, tile, 0, outer)) take(std::true_type(), tile, 0, outer);
    }
  }
}

template <typename Config>
cudaError_t launch_forward_group(const Problem& problem, const ForwardArguments& arguments,
                                 cudaStream_t stream) {
  const int64_t tiles = (problem.num_queries + Config::kQueries - 1) / Config::kQueries;
  const int64_t head_groups = (problem.num_heads + Config::kHeads - 1) / Config::kHeads;
  if (Config::kFew) {
    const dim3 blocks(static_cast<unsigned>(tiles), static_cast<unsigned>(head_groups),
                      static_cast<unsigned>(problem.batch_size));
    return launch(forward_group_kernel<Config>, blocks, Config::kThreads, stream, problem,
                  arguments);
  }
  int multiprocessors = 0;
  const cudaError_t status = get_attribute(cudaDevAttrMultiProcessorCount, multiprocessors);
  if (status != cudaSuccess) return status;
  const int64_t blocks = std::min<int64_t>(tiles * head_groups * problem.batch_size,
                                           int64_t{Config::kBlocks} * multiprocessors);
  return launch_pairs(forward_group_kernel<Config>, blocks, Config::kThreads, stream, problem,
                      arguments);
}

}  // namespace msda
