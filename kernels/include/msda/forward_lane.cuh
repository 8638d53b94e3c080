// The work of one lane of forward_group.cuh for one (n,q,m). The lane makes some of the samples
// from locations (or offsets) and weights (or logits), and hands them to the other lanes of its
// group. It reads its own channels of the four corners of all samples, blends them and adds them
// up.
#pragma once

#include "msda/group_config.cuh"
#include "msda/group_sample.cuh"
#include "msda/softmax.cuh"

namespace msda {

// Samples in the registers of a group: all of them in one lane, or sample i in lane i.
template <typename T>
struct SamplesOfLane {
  const Sample<T> (&samples)[4];
  int holder;
  __device__ __forceinline__ const Sample<T>& sample(int i) const { return samples[i]; }
  __device__ __forceinline__ int lane(int) const { return holder; }
};
template <typename T>
struct SampleOfEachLane {
  const Sample<T>& own;
  __device__ __forceinline__ const Sample<T>& sample(int) const { return own; }
  __device__ __forceinline__ int lane(int i) const { return i; }
};

// kMasked: samples are masked, not clamped.
template <typename Config, bool kMasked>
class ForwardLane {
 public:
  using T = typename Config::Type;
  using Input = typename Config::Input;
  using Weight = typename Config::Weight;
  using Corner = std::conditional_t<Config::kInt8Value, uint2, uint4>;
  static constexpr GroupSpec kSpec = Config::spec;
  static constexpr int kLanes = Config::kLanes;
  static constexpr int kChunks = Config::kChunks;
  static constexpr bool kFused = Config::kFused;
  static constexpr bool kNormaliseFirst = Config::kNormaliseFirst && !kMasked;
  static constexpr int kReferenceSize = Config::kBoxes ? 4 : 2;

  // query_index: n * Q + q; item: query_index * M + m. value: the addresses of the lane's chunks in
  // the first cell of the image.
  __device__ __forceinline__ ForwardLane(const Problem& problem, const ForwardArguments& arguments,
                                         const SharedLevels& shared, uint32_t item,
                                         uint32_t query_index, const char* const (&value)[kChunks],
                                         int32_t cell_bytes)
      : problem_(problem), shared_(shared), cell_bytes_(cell_bytes) {
    const auto at = [](const void* start, uint32_t index, uint32_t bytes) {
      return static_cast<const char*>(start) + static_cast<uint64_t>(index) * bytes;
    };
    const uint32_t num_levels = Config::kKnownLevels ? static_cast<uint32_t>(kSpec.num_levels)
                                                     : static_cast<uint32_t>(problem.num_levels);
    const uint32_t num_points =
        Config::kKnownLevels ? 4 * num_levels : static_cast<uint32_t>(problem.total_points);
    // The heads of a query follow each other; a gap may follow the last.
    const auto inputs_at = [&](const void* start, int64_t stride, uint32_t numbers) {
      const uint32_t item_bytes = num_points * numbers * sizeof(Input);
      const uint32_t num_heads =
          kSpec.num_heads > 0 ? kSpec.num_heads : static_cast<uint32_t>(problem.num_heads);
      const uint32_t gap = static_cast<uint32_t>(stride) * sizeof(Input) - num_heads * item_bytes;
      const char* const inputs = at(at(start, item, item_bytes), query_index, gap);
      return reinterpret_cast<const Input*>(Config::kOpaqueInputs ? opaque(inputs) : inputs);
    };
    const uint32_t reference_bytes = num_levels * kReferenceSize * sizeof(float);
    locations_ = inputs_at(arguments.sampling_locations, problem.location_stride, 2);
    weights_ = inputs_at(arguments.attention_weights, problem.weight_stride, 1);
    references_ = reinterpret_cast<const float*>(
        at(arguments.reference_points, query_index, reference_bytes));
#pragma unroll
    for (int k = 0; k < kChunks; ++k) value_[k] = value[k];
  }

  // Adds up all samples.
  __device__ __forceinline__ void add() {
    if constexpr (Config::kKnownLevels && !kMasked) {
      add_known_levels();
    } else {
      add_any_levels();
    }
  }

  // Whether a sum is NaN.
  __device__ __forceinline__ bool has_nan() const {
    float sum = 0;
    if constexpr (!Config::kInt8Value) {
#pragma unroll
      for (int k = 0; k < kChunks; ++k) {
#pragma unroll
        for (int i = 0; i < Config::kChunkChannels; ++i) sum += sums_[k][i];
      }
    }
    return sum != sum;
  }

  // Writes the lane's channels of the output of the (n,q,m); null: writes nothing. rotation: as of
  // the chunks in `value`.
  __device__ __forceinline__ void finish(T* output, int rotation) {
    float scale = 1.0f;
    if constexpr (kFused && !kNormaliseFirst) {
      scale = 1.0f / sum_over_group(total_weight_, kLanes);
    } else if constexpr (!kFused && Config::kRelativeWeights) {
      scale = relative_.largest;
    }
    if constexpr (Config::kInt8Value) scale *= problem_.value_scale / kFixedOne;
#pragma unroll
    for (int k = 0; k < kChunks; ++k) {
      float result[Config::kChunkChannels];
#pragma unroll
      for (int i = 0; i < Config::kChunkChannels; ++i) {
        result[i] = static_cast<float>(sums_[k][i]) * scale;
      }
      if (output != nullptr) {
        store_chunk(output + ((k ^ rotation) * kLanes + lane()) * Config::kChunkChannels, result);
      }
    }
  }

 private:
  struct Reference {
    Scalars<float, 2> center{};
    Scalars<float, 2> size{};
  };
  using LevelType = std::conditional_t<kMasked, SharedLevel, ClampedLevel>;

  __device__ __forceinline__ static int lane() { return threadIdx.x % kLanes; }

  __device__ __forceinline__ Reference load_reference(int level_index) const {
    Reference reference;
    if constexpr (kFused) {
      const float* const numbers = references_ + level_index * kReferenceSize;
      reference.center.load_once(numbers);
      if constexpr (Config::kBoxes) reference.size.load_once(numbers + 2);
    }
    return reference;
  }

  __device__ __forceinline__ const LevelType& level_at(int index) const {
    if constexpr (kMasked) {
      return shared_.level[index];
    } else {
      return shared_.clamped[index];
    }
  }

  // Levels of four points each, known at compile time. Rounds of four levels come first, in which
  // lane i makes the four samples of level i; then, level by level, lane i makes sample i.
  __device__ __forceinline__ void add_known_levels() {
    constexpr int kRounds = Config::kLevelRounds;
    constexpr int kRoundLevels = kRounds * 4;
    constexpr int kRest = kSpec.num_levels - kRoundLevels;
    Scalars<Input, 8> round_location[kRounds > 0 ? kRounds : 1];
    Scalars<Input, 4> round_weight[kRounds > 0 ? kRounds : 1];
    Reference round_reference[kRounds > 0 ? kRounds : 1];
    Scalars<Input, 2> location[kRest > 0 ? kRest : 1];
    Scalars<Input, 1> weight[kRest > 0 ? kRest : 1];
    Reference reference[kRest > 0 ? kRest : 1];
    if constexpr (kRounds > 0) {
#pragma unroll
      for (int r = 0; r < kRounds; ++r) {
        const int first = (r * 4 + lane()) * 4;
        round_weight[r].load_once(weights_ + first);
        round_location[r].load_once(locations_ + 2 * first);
        round_reference[r] = load_reference(r * 4 + lane());
      }
    }
#pragma unroll
    for (int i = 0; i < kRest; ++i) {
      weight[i].load_once(weights_ + (kRoundLevels + i) * 4 + lane());
      location[i].load_once(locations_ + 2 * ((kRoundLevels + i) * 4 + lane()));
    }
    if constexpr (kRest > 0) reference[0] = load_reference(kRoundLevels);

    // The lane's weights: four of each round, then one of each other level. (Both indices stay
    // inside their arrays, whichever is used.)
    constexpr int kWeights = kRounds * 4 + kRest;
    float own_weight[kWeights];
#pragma unroll
    for (int i = 0; i < kWeights; ++i) {
      own_weight[i] = i < kRoundLevels ? round_weight[i / 4 * (kRounds > 0)][i % 4]
                                       : weight[i < kRoundLevels ? 0 : i - kRoundLevels][0];
      if constexpr (Config::kRelativeWeights) relative_.observe(own_weight[i]);
    }
    if constexpr (Config::kRelativeWeights) relative_.reduce();
    if constexpr (kNormaliseFirst) {
#pragma unroll
      for (int i = 0; i < kWeights; ++i) {
        own_weight[i] = relative_(own_weight[i]);
        total_weight_ += own_weight[i];
      }
      const float scale = 1.0f / sum_over_group(total_weight_, kLanes);
#pragma unroll
      for (int i = 0; i < kWeights; ++i) own_weight[i] *= scale;
    }

    Sample<Weight> round_samples[kRounds > 0 ? kRounds : 1][4];
    Sample<Weight> samples[Config::kSamplesFirst && kRest > 0 ? kRest : 1];
    const auto make_rest = [&](int i) {
      return make_own(location[i][0], location[i][1], own_weight[kRoundLevels + i], reference[i],
                      level_at(kRoundLevels + i), 4);
    };
#pragma unroll
    for (int r = 0; r < kRounds; ++r) {
      const auto level = level_at(r * 4 + lane());
#pragma unroll
      for (int p = 0; p < 4; ++p) {
        round_samples[r][p] = make_own(round_location[r][2 * p], round_location[r][2 * p + 1],
                                       own_weight[r * 4 + p], round_reference[r], level, 4);
      }
    }
    if constexpr (Config::kSamplesFirst) {
#pragma unroll
      for (int i = 0; i < kRest; ++i) samples[i] = make_rest(i);
    }

#pragma unroll
    for (int r = 0; r < kRounds; ++r) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        add_samples<4, false>(SamplesOfLane<Weight>{round_samples[r], i}, level_at(r * 4 + i).width,
                              4, is_coarsest(r * 4 + i));
      }
    }
#pragma unroll
    for (int i = 0; i < kRest; ++i) {
      if constexpr (!Config::kSamplesFirst) {
        if (i + 1 < kRest) reference[i + 1] = load_reference(kRoundLevels + i + 1);
        samples[0] = make_rest(i);
      }
      add_samples<4, false>(SampleOfEachLane<Weight>{samples[Config::kSamplesFirst ? i : 0]},
                            level_at(kRoundLevels + i).width, 4, is_coarsest(kRoundLevels + i));
    }
  }

  // Any levels: a lane makes every kLanes-th sample of a level.
  __device__ __forceinline__ void add_any_levels() {
    const int num_levels = static_cast<int>(problem_.num_levels);
    const int num_points = static_cast<int>(problem_.total_points);
    Scalars<Input, 2> next_location{};
    Scalars<Input, 1> next_weight{};
    const auto load_point = [&](int point) {
      if (point >= num_points) return;
      next_location.load_once(locations_ + 2 * point);
      next_weight.load_once(weights_ + point);
    };
    load_point(lane());
    Reference next_reference = load_reference(0);
    if constexpr (Config::kRelativeWeights) {
#pragma unroll 4
      for (int i = lane(); i < num_points; i += kLanes) relative_.observe(widen(weights_[i]));
      relative_.reduce();
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
        Sample<Weight> own;
        if (first + lane() < level_points) {
          own = make_own(next_location[0], next_location[1], next_weight[0], reference, level,
                         level_points);
        }
        // The last round of a level may be short; the next level begins with the first lane.
        load_point(level_start + min(first + kLanes, level_points) + lane());
        add_samples<kLanes, true>(SampleOfEachLane<Weight>{own}, level.width, level_points - first);
      }
    }
  }

  // A sample from the numbers that the lane has read: a location or an offset (x, y), and a weight
  // or a logit.
  __device__ __forceinline__ Sample<Weight> make_own(float x, float y, float weight,
                                                     const Reference& reference,
                                                     const LevelType& level, int level_points) {
    const float width = level.real_width();
    const float height = level.real_height();
    if constexpr (Config::kRelativeWeights && !kNormaliseFirst) weight = relative_(weight);
    const auto make = [&](auto coordinate_x, auto coordinate_y) {
      if constexpr (kMasked) {
        return make_sample<Weight>(masked_axis(coordinate_x, width),
                                   masked_axis(coordinate_y, height), weight, level);
      } else {
        return make_sample<Weight>(clamped_axis(coordinate_x, width),
                                   clamped_axis(coordinate_y, height), weight, level);
      }
    };
    if constexpr (kFused) {
      if constexpr (!kNormaliseFirst) total_weight_ += weight;
      float2 scale = make_float2(1.0f, 1.0f);
      if constexpr (Config::kBoxes) {
        scale = make_float2(pixels_per_offset(reference.size[0], level_points, width),
                            pixels_per_offset(reference.size[1], level_points, height));
      }
      return make(offset_coordinate<Weight>(reference.center[0], x, scale.x, width),
                  offset_coordinate<Weight>(reference.center[1], y, scale.y, height));
    } else {
      return make(location_coordinate<Weight>(x, width), location_coordinate<Weight>(y, height));
    }
  }

  __device__ __forceinline__ static bool is_coarsest(int level_index) {
    return Config::kKeepsCoarsestLevel && level_index + 1 == kSpec.num_levels;
  }

  __device__ __forceinline__ static Corner load_corner(const char* address, bool keeps) {
    const auto words = reinterpret_cast<const Corner*>(address);
    if constexpr (!Config::kWholeLines) {
      return load_word<Cached::kNormal>(words);
    } else {
      return keeps ? load_word<Cached::kLineEvictLast>(words) : load_word<Cached::kLine>(words);
    }
  }

  __device__ __forceinline__ static void store_chunk(T* address,
                                                     const float (&sums)[Config::kChunkChannels]) {
    uint4 words;
    if constexpr (std::is_same_v<T, float>) {
      words = make_uint4(__float_as_uint(sums[0]), __float_as_uint(sums[1]),
                         __float_as_uint(sums[2]), __float_as_uint(sums[3]));
    } else {
      words = make_uint4(pack<T>(sums[0], sums[1]), pack<T>(sums[2], sums[3]),
                         pack<T>(sums[4], sums[5]), pack<T>(sums[6], sums[7]));
    }
    store_past_l1(address, words);
  }

  // Adds kMost samples of one level of the given width, or, where kCounts, `count` of them. keeps:
  // the level's cells leave L1 last.
  template <int kMost, bool kCounts, typename Samples>
  __device__ __forceinline__ void add_samples(const Samples& held, int32_t width, int count,
                                              bool keeps = false) {
    constexpr int kInFlight = kSpec.samples_in_flight < kMost ? kSpec.samples_in_flight : kMost;
    Sample<Weight> sample[kInFlight];
    // Cells travel first, while the corners of earlier samples are on their way: addresses wait for
    // them.
    const auto receive_cells = [&](int start) {
#pragma unroll
      for (int j = 0; j < kInFlight; ++j) {
        const uint32_t cell_word =
            __shfl_sync(kFullMask, held.sample(start + j).cell_word, held.lane(start + j), kLanes);
        sample[j].cell_word = no_hoist(cell_word);
      }
    };
    receive_cells(0);
#pragma unroll
    for (int start = 0; start < kMost; start += kInFlight) {
      if (kCounts && start >= count) break;
#pragma unroll
      for (int j = 0; j < kInFlight; ++j) {
        const uint32_t cell_word = sample[j].cell_word;
        const int32_t top_left = kMasked ? masked_cell(cell_word) : static_cast<int32_t>(cell_word);
#pragma unroll
        for (int k = 0; k < kChunks; ++k) {
          const char* const top = value_[k] + static_cast<int64_t>(top_left) * cell_bytes_;
          const char* const bottom =
              value_[k] + static_cast<int64_t>(top_left + width) * cell_bytes_;
          const char* const address[4] = {top, top + cell_bytes_, bottom, bottom + cell_bytes_};
#pragma unroll
          for (int c = 0; c < 4; ++c) {
            if (!kMasked || has_corner(cell_word, c)) {
              corner_[j][k][c] = load_corner(address[c], keeps);
            }
          }
        }
      }
      Sample<Weight> weighted[kInFlight];
#pragma unroll
      for (int j = 0; j < kInFlight; ++j) {
        weighted[j].cell_word = sample[j].cell_word;
        weights_from_lane<kLanes>(held.sample(start + j), held.lane(start + j), weighted[j]);
      }
      if (start + kInFlight < kMost) receive_cells(start + kInFlight);
#pragma unroll
      for (int j = 0; j < kInFlight; ++j) {
#pragma unroll
        for (int k = 0; k < kChunks; ++k) blend<kMasked>(weighted[j], corner_[j][k], sums_[k]);
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
  typename Config::Sum sums_[kChunks][Config::kChunkChannels] = {};
  Corner corner_[kSpec.samples_in_flight][kChunks][4] = {};
  RelativeWeights<kFused, kLanes> relative_;
  float total_weight_ = 0;
};

}  // namespace msda
