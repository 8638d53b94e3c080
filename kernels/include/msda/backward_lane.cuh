// The work of one lane of backward_group.cuh for one (n,q,m). The lane makes one point at a time
// and hands it to its group through shared memory. Then the group takes the points one after the
// other, each lane its channels of the four corners: it reads value, adds to grad_value, and keeps
// the products of value and grad_output. Sums of the products over the lanes are the gradients of
// the point's weight and coordinates.
#pragma once

#include "msda/backward_choice.h"
#include "msda/backward_work.h"
#include "msda/group_sample.cuh"
#include "msda/softmax.cuh"

namespace msda {

// What a kernel is compiled for. kFused: else locations and weights are given.
template <typename T, int kHeadDim_, bool kFused_>
struct BackwardConfig {
  using Type = T;
  static constexpr int kHeadDim = kHeadDim_;
  static constexpr bool kFused = kFused_;

  static constexpr int kVec = 4;                      // channels of a lane
  static constexpr int kLanes = kHeadDim / kVec;      // of a group; also points of a round
  static constexpr int kThreads = 256;                // of a block
  static constexpr int kBlocks = 3;                   // of a multiprocessor
  static constexpr int kGroups = 32 / kLanes;         // of a warp
  static constexpr int kQueries = kThreads / kLanes;  // of a block: all of one head
  static constexpr int kTileHeight = kQueries / kTileWidth;
  // Rounds of points whose weight gradients are kept until their sum is known.
  static constexpr int kKeptRounds = kFused ? (kMaxKeptPoints + kLanes - 1) / kLanes : 1;

  static_assert(kLanes >= 4 && kLanes <= 32 && (kLanes & (kLanes - 1)) == 0);
};

// Points on their way from the lane that made them to its group. Those that the groups of a warp
// read at the same time lie side by side.
template <int kThreads>
struct SharedPoints {
  float4 weight[kThreads];          // attention weight times bilinear weight, of the four corners
  uint2 cell_word_width[kThreads];  // the cell_word of a masked sample; the width of its level
};

// The shared memory of a block.
template <typename Config>
struct SharedBackward {
  SharedLevels levels;
  int level_ends[kMaxLevels];  // number of points of a level and of those before it
  SharedPoints<Config::kThreads> points;
  // The gradients of a thread's weights.
  float kept[Config::kFused ? Config::kKeptRounds : 1][Config::kFused ? Config::kThreads : 1];
};

// The (n,q,m) of a thread; query -1: none.
struct ItemOfThread {
  int64_t batch;
  int query;
  int head;
};

// Sums four numbers of each lane over the group: lane i gets the sum of number i % 4. Each shuffle
// halves the numbers that a lane still has to sum: in a group of eight the corners' products of
// four points take 16 shuffles, where the three gradients of each point alone would take 36.
template <int kLanes>
__device__ __forceinline__ float sum_four(float first, float second, float third, float fourth) {
  const bool odd = threadIdx.x & 1;
  const bool upper = threadIdx.x & 2;
  const float low = (odd ? second : first) + __shfl_xor_sync(kFullMask, odd ? first : second, 1);
  const float high = (odd ? fourth : third) + __shfl_xor_sync(kFullMask, odd ? third : fourth, 1);
  float sum = (upper ? high : low) + __shfl_xor_sync(kFullMask, upper ? low : high, 2);
#pragma unroll
  for (int distance = 4; distance < kLanes; distance *= 2) {
    sum += __shfl_xor_sync(kFullMask, sum, distance);
  }
  return sum;
}

// A lane's channels of one point: adds to the corners in grad_value, and returns in `product` the
// products of grad_output with the corners in value. value and grad_value: the lane's channels of
// cell 0; strides in bytes. kAllInside: all four corners are inside the level.
template <typename T, bool kAllInside>
__device__ __forceinline__ void differentiate_point(const Vector<T, 4>& grad, uint2 cell_word_width,
                                                    float4 weight, const char* value,
                                                    int value_stride, const char* grad_value,
                                                    int grad_stride, float (&product)[4]) {
  const float corner_weight[4] = {weight.x, weight.y, weight.z, weight.w};
  const uint32_t cell_word = cell_word_width.x;
  const int32_t top_left = masked_cell(cell_word);
  const int32_t bottom_left = top_left + static_cast<int32_t>(cell_word_width.y);
  const int32_t cell[4] = {top_left, top_left + 1, bottom_left, bottom_left + 1};
  Vector<T, 4> corner[4];
#pragma unroll
  for (int c = 0; c < 4; ++c) {
    const char* const address = multiply_add_address(value, cell[c], value_stride);
    corner[c] =
        load_if<T, 4>(kAllInside || has_corner(cell_word, c), reinterpret_cast<const T*>(address));
  }
#pragma unroll
  for (int c = 0; c < 4; ++c) {
    product[c] = 0;
    float grad_cell[4];
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      product[c] += grad[k] * corner[c][k];
      grad_cell[k] = corner_weight[c] * grad[k];
    }
    if (kAllInside || has_corner(cell_word, c)) {
      reduce_four(multiply_add_address(grad_value, cell[c], grad_stride), grad_cell);
    }
  }
}

// The gradients of one (n,q,m).
template <typename Config>
class BackwardLane {
 public:
  using T = typename Config::Type;
  static constexpr int kLanes = Config::kLanes;
  static constexpr int kVec = Config::kVec;

  __device__ __forceinline__ BackwardLane(const Problem& problem,
                                          const BackwardArguments& arguments,
                                          const BackwardWork& work, const ItemOfThread& where,
                                          SharedBackward<Config>& shared)
      : problem_(problem),
        arguments_(arguments),
        forward_(arguments.forward),
        work_(work),
        shared_(shared),
        // Lanes without an item repeat the first. They read no value and write nothing.
        writes_(where.query >= 0),
        boxes_(problem.locations == Locations::kReferenceBoxes),
        wide_locations_(problem.location_type != problem.value_type),
        wide_weights_(problem.weight_type != problem.value_type),
        num_points_(static_cast<int>(problem.total_points)),
        query_index_(where.batch * problem.num_queries + (writes_ ? where.query : 0)) {
    const int num_heads = static_cast<int>(problem.num_heads);
    const int64_t item = query_index_ * num_heads + where.head;
    own_point_ = item * num_points_ + lane();
    const int cell_stride = num_heads * Config::kHeadDim;
    value_stride_ = cell_stride * static_cast<int>(sizeof(T));
    grad_stride_ = cell_stride * static_cast<int>(sizeof(float));
    const int64_t first_channel = where.batch * problem.num_cells * cell_stride +
                                  where.head * Config::kHeadDim + lane() * kVec;
    value_ = opaque(static_cast<const char*>(forward_.value) +
                    first_channel * static_cast<int>(sizeof(T)));
    grad_value_ = opaque(static_cast<const char*>(arguments.grad_value) +
                         first_channel * static_cast<int>(sizeof(float)));
    grad_ = load<T, kVec>(static_cast<const T*>(arguments.grad_output) + item * Config::kHeadDim +
                          lane() * kVec);
  }

  __device__ __forceinline__ void run() {
    Softmax<float> softmax;
    if constexpr (Config::kFused) {
      softmax =
          make_softmax(Cursor<T>(forward_.attention_weights, own_point_ - lane(), wide_weights_),
                       num_points_, lane(), kLanes);
    }
    float weighted_sum = 0;  // of the gradients of the lane's weights

    Pair<float> next_location{};
    float next_weight = 0;
    if (lane() < num_points_) {
      next_location = location_at(0);
      next_weight = weight_at(0);
    }
    int level_index = 0;
    for (int first = 0, round = 0; first < num_points_; first += kLanes, ++round) {
      const Pair<float> location = next_location;
      const float weight = next_weight;
      const bool owns = first + lane() < num_points_;
      if (first + kLanes + lane() < num_points_) {
        next_location = location_at(first + kLanes);
        next_weight = weight_at(first + kLanes);
      }

      Point point{};
      if (owns) {
        while (first + lane() >= shared_.level_ends[level_index]) ++level_index;
        point = make_point(level_index, location, Config::kFused ? softmax(weight) : weight);
      }
      point.reads = owns && writes_ && (point.sample.cell_word & kAllCorners) != 0;
      share(point);

      float product[4] = {};  // of the lane's own point: grad_output . corner
      differentiate_round(first, product);
      if (owns && writes_) {
        const float grad_weight = write_point(first, point, product);
        if constexpr (Config::kFused) {
          shared_.kept[round][threadIdx.x] = grad_weight;
          if (point.reads) weighted_sum += point.weight * grad_weight;
        } else {
          store_weight(first, grad_weight);
        }
      }
    }

    if constexpr (Config::kFused) {
      weighted_sum = sum_over_group(weighted_sum, kLanes);
      if (!writes_) return;
      for (int first = 0, round = 0; first + lane() < num_points_; first += kLanes, ++round) {
        const float weight = softmax(weight_at(first));
        store_weight(first, weight * (shared_.kept[round][threadIdx.x] - weighted_sum));
      }
    }
  }

 private:
  // The lane's own point.
  struct Point {
    MaskedAxis x{};
    MaskedAxis y{};
    float weight = 0;
    Pair<float> scale{};  // pixels that one unit of the location or offset moves the sample by
    Sample<float> sample;
    int32_t level_width = 0;
    bool reads = false;  // whether it reads a cell
  };

  __device__ __forceinline__ static int lane() { return threadIdx.x % kLanes; }

  // Cursors are made from the tensors' pointers every time; those are constants, and registers are
  // scarce.
  __device__ __forceinline__ Pair<float> location_at(int first) const {
    return Cursor<T>(forward_.sampling_locations, 2 * (own_point_ + first), wide_locations_)
        .template pair<true>();
  }
  __device__ __forceinline__ float weight_at(int first) const {
    return Cursor<T>(forward_.attention_weights, own_point_ + first, wide_weights_).scalar();
  }
  __device__ __forceinline__ void store_weight(int first, float gradient) const {
    Cursor<T, false>(arguments_.grad_attention_weights, own_point_ + first, wide_weights_)
        .store(0, gradient);
  }

  __device__ __forceinline__ Point make_point(int level_index, const Pair<float>& location,
                                              float weight) const {
    const SharedLevel level = shared_.levels.level[level_index];
    const float width = level.real_width();
    const float height = level.real_height();
    Point point{};
    point.weight = weight;
    point.level_width = level.width;
    if constexpr (Config::kFused) {
      const float* const reference =
          static_cast<const float*>(forward_.reference_points) +
          (query_index_ * problem_.num_levels + level_index) * (boxes_ ? 4 : 2);
      const Vector<float, 2> origin = load<float, 2>(reference);
      point.scale = {1.0f, 1.0f};
      if (boxes_) {
        const Vector<float, 2> size = load<float, 2>(reference + 2);
        const int32_t level_points = problem_.points_per_level[level_index];
        point.scale = {pixels_per_offset(size[0], level_points, width),
                       pixels_per_offset(size[1], level_points, height)};
      }
      const float x = boxes_ ? location.x * point.scale.x : location.x;
      const float y = boxes_ ? location.y * point.scale.y : location.y;
      point.x = masked_axis(at_offset(origin[0], x, width), width);
      point.y = masked_axis(at_offset(origin[1], y, height), height);
    } else {
      point.scale = {width, height};
      point.x = masked_axis(at_location(location.x, width), width);
      point.y = masked_axis(at_location(location.y, height), height);
    }
    point.sample = make_sample<float>(point.x, point.y, weight, level);
    return point;
  }

  // The slot in shared memory of a point that a lane of the group made.
  __device__ __forceinline__ static int slot(int group_lane) {
    const int warp_start = static_cast<int>(threadIdx.x) / 32 * 32;
    const int group = threadIdx.x % 32 / kLanes;
    return warp_start + group_lane * Config::kGroups + group;
  }

  __device__ __forceinline__ void share(const Point& point) const {
    const float(&weight)[4] = point.sample.weight;
    __syncwarp();  // the group has read the last round's points
    shared_.points.weight[slot(lane())] = make_float4(weight[0], weight[1], weight[2], weight[3]);
    shared_.points.cell_word_width[slot(lane())] =
        make_uint2(point.reads ? point.sample.cell_word : 0u, point.level_width);
    __syncwarp();
  }

  // The points of the group, four at a time.
  __device__ __forceinline__ void differentiate_round(int first, float (&own_product)[4]) const {
#pragma unroll 1
    for (int four = 0; four < kLanes; four += 4) {
      // In all groups of the warp: they have the same number of points.
      if (first + four >= num_points_) break;
      float product[4][4];  // point, corner
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const uint2 cell_word_width = shared_.points.cell_word_width[slot(four + j)];
        const float4 weight = shared_.points.weight[slot(four + j)];
        const auto differentiate = [&](auto all_inside) {
          differentiate_point<T, decltype(all_inside)::value>(grad_, cell_word_width, weight,
                                                              value_, value_stride_, grad_value_,
                                                              grad_stride_, product[j]);
        };
        if (__all_sync(kFullMask, (cell_word_width.x & kAllCorners) == kAllCorners)) {
          differentiate(std::true_type());
        } else {
          differentiate(std::false_type());
        }
      }
#pragma unroll
      for (int c = 0; c < 4; ++c) {
        const float sum =
            sum_four<kLanes>(product[0][c], product[1][c], product[2][c], product[3][c]);
        if (lane() / 4 == four / 4) own_product[c] = sum;
      }
    }
  }

  // Writes the gradient of the own point's location or offset. Returns that of its weight.
  __device__ __forceinline__ float write_point(int first, const Point& point,
                                               float (&product)[4]) const {
#pragma unroll
    for (int c = 0; c < 4; ++c) {
      // A cell outside is not sampled: an infinite grad_output times zero would be NaN.
      if (!has_corner(point.sample.cell_word, c)) product[c] = 0;
    }
    const float fx = point.x.fraction;
    const float fy = point.y.fraction;
    const float grad_weight = (1 - fy) * ((1 - fx) * product[0] + fx * product[1]) +
                              fy * ((1 - fx) * product[2] + fx * product[3]);
    Pair<float> pixel{};
    if (point.reads) {
      pixel.x =
          point.weight * ((1 - fy) * (product[1] - product[0]) + fy * (product[3] - product[2]));
      pixel.y =
          point.weight * ((1 - fx) * (product[2] - product[0]) + fx * (product[3] - product[1]));
    }
    const Cursor<T, false> gradient(arguments_.grad_sampling_locations, 2 * (own_point_ + first),
                                    wide_locations_);
    gradient.store(0, point.reads ? pixel.x * point.scale.x : 0.0f);
    gradient.store(1, point.reads ? pixel.y * point.scale.y : 0.0f);
    if constexpr (Config::kFused) {
      if (work_.grad_pixels != nullptr) {
        static_cast<float2*>(work_.grad_pixels)[own_point_ + first] = make_float2(pixel.x, pixel.y);
      }
    }
    return grad_weight;
  }

  const Problem& problem_;
  const BackwardArguments& arguments_;
  const ForwardArguments& forward_;
  const BackwardWork& work_;
  SharedBackward<Config>& shared_;
  bool writes_;
  bool boxes_;
  bool wide_locations_;
  bool wide_weights_;
  int num_points_;
  int64_t query_index_;
  int64_t own_point_;  // of the first round
  int value_stride_;
  int grad_stride_;
  const char* value_;
  const char* grad_value_;
  Vector<T, kVec> grad_;
};

}  // namespace msda
