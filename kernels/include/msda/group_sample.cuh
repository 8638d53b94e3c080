// One sample as the lanes of a group hand it to each other: where its four corners are, and their
// weights. Corners count top left, top right, bottom left, bottom right.
//
// There are two kinds of samples:
//   clamped  Its four corners are neighbouring cells inside the level, which has two rows and two
//            columns or more. They include every cell that the sample touches; the other weights
//            are zero. Loads need no predicates. `cell_word` is the index of the top left cell
//            among the cells of all levels.
//   masked   Its four corners may lie outside the level. A mask tells which of them are inside;
//            the others are not read, and have the weight zero. `cell_word` is the index of the
//            top left cell times 32, plus the mask in bits 1 to 4. (Bit 0 is free, so that one
//            instruction turns the others into predicates.)
#pragma once

#include "msda/packed.cuh"
#include "msda/tiles.cuh"
#include "msda/vector.cuh"

namespace msda {

inline constexpr int kMaskBits = 5;
inline constexpr uint32_t kAllCorners = 30;
__device__ __forceinline__ bool has_corner(uint32_t cell_word, int corner) {
  return (cell_word & (2u << corner)) != 0;
}
// The top left cell of a masked sample.
__device__ __forceinline__ int32_t masked_cell(uint32_t cell_word) {
  return static_cast<int32_t>(cell_word) >> kMaskBits;
}

// The type of weights that are multiplied with int8 values: integers, kFixedOne for 1.
struct Fixed16 {};
inline constexpr float kFixedOne = 32767.0f;

template <typename T>
struct Sample {
  uint32_t cell_word = 0;
  uint32_t top = 0;  // two weights of type T, the left one in the low half
  uint32_t bottom = 0;
};
template <>
struct Sample<float> {
  uint32_t cell_word = 0;
  float weight[4] = {};
};

// ---- Coordinates --------------------------------------------------------------------------------

// A pixel coordinate minus 0.5. Rounded to the nearest integer it is the lower one of the two cells
// that the coordinate lies between. It has float's precision: 16-bit values do not need the exact
// remainders of bilinear.h.
struct FastCoordinate {
  float minus_half;
};

// The coordinate of a location, and of an offset from a reference point.
template <typename T>
__device__ __forceinline__ auto location_coordinate(float location, float size) {
  if constexpr (std::is_same_v<T, float>) {
    return at_location(location, size);
  } else {
    return FastCoordinate{fmaf(location, size, -1.0f)};
  }
}
template <typename T>
__device__ __forceinline__ auto offset_coordinate(float reference, float offset,
                                                  float pixels_per_offset, float size) {
  if constexpr (std::is_same_v<T, float>) {
    return at_offset(reference, offset * pixels_per_offset, size);
  } else {
    return FastCoordinate{fmaf(offset, pixels_per_offset, fmaf(reference, size, -1.0f))};
  }
}

// One axis of a masked sample. A coordinate that is far outside or not finite becomes one whose
// two cells are both outside.
struct MaskedAxis {
  int32_t cell;
  float fraction;
};

__device__ __forceinline__ MaskedAxis masked_axis(Coordinate<float> coordinate, float size) {
  const bool touching = touches(coordinate, size);
  return {touching ? static_cast<int32_t>(coordinate.cell) : -2,
          touching ? coordinate.fraction : 0.0f};
}
__device__ __forceinline__ MaskedAxis masked_axis(FastCoordinate coordinate, float size) {
  const float bounded = fminf(fmaxf(coordinate.minus_half, -2.5f), size);  // NaN becomes -2.5
  const float rounded = bounded + kRounder;
  return {static_cast<int32_t>(__float_as_uint(rounded) - kRounderBits),
          (bounded - (rounded - kRounder)) + 0.5f};
}

// One axis of a clamped sample: the lower one of the two neighbouring cells, both inside the level,
// that are nearest to the coordinate, and the weights of both. A weight is one minus the distance,
// or zero; it is zero for a coordinate that is not finite.
struct ClampedAxis {
  int32_t cell;  // of a FastCoordinate: plus kRounderBits
  float low;
  float high;
};

__device__ __forceinline__ ClampedAxis clamped_axis(Coordinate<float> coordinate, float size) {
  const float cell = fminf(fmaxf(coordinate.cell, 0.0f), size - 2.0f);
  const float distance = (coordinate.cell - cell) + coordinate.fraction;
  // A coordinate inside the level keeps its fraction to the last bit.
  return {static_cast<int32_t>(cell), fmaxf(1.0f - fabsf(distance), 0.0f),
          fmaxf(fminf(distance, 2.0f - distance), 0.0f)};
}
__device__ __forceinline__ ClampedAxis clamped_axis(FastCoordinate coordinate, float size) {
  const float rounded =
      fminf(fmaxf(coordinate.minus_half + kRounder, kRounder), size + (kRounder - 2.0f));
  const float distance = (coordinate.minus_half - (rounded - kRounder)) + 0.5f;
  return {static_cast<int32_t>(__float_as_uint(rounded)), __saturatef(1.0f - fabsf(distance)),
          __saturatef(1.0f - fabsf(distance - 1.0f))};
}

// ---- Samples ------------------------------------------------------------------------------------

template <typename T>
__device__ __forceinline__ uint32_t pack_weights(float low, float high) {
  if constexpr (std::is_same_v<T, Fixed16>) {
    // The low 16 bits of each float are the rounded integer.
    return select_bytes<0x5410>(__float_as_uint(fmaf(low, kFixedOne, kRounder)),
                                __float_as_uint(fmaf(high, kFixedOne, kRounder)));
  } else {
    return pack<T>(low, high);
  }
}

// weight_y, weight_x: of the lower and the higher cell of each axis.
template <typename T>
__device__ __forceinline__ void set_weights(Sample<T>& sample, const float (&weight_y)[2],
                                            const float (&weight_x)[2]) {
  if constexpr (std::is_same_v<T, float>) {
#pragma unroll
    for (int c = 0; c < 4; ++c) sample.weight[c] = weight_y[c / 2] * weight_x[c % 2];
  } else {
    sample.top = pack_weights<T>(weight_y[0] * weight_x[0], weight_y[0] * weight_x[1]);
    sample.bottom = pack_weights<T>(weight_y[1] * weight_x[0], weight_y[1] * weight_x[1]);
  }
}

// A masked sample. weight: the sample's attention weight; at most 1 for 16-bit T, because it is
// multiplied into the weights of the corners.
template <typename T>
__device__ __forceinline__ Sample<T> make_sample(MaskedAxis x, MaskedAxis y, float weight,
                                                 const SharedLevel& level) {
  const auto inside = [](int32_t cell, int32_t size) {
    return static_cast<uint32_t>(cell) < static_cast<uint32_t>(size);
  };
  const bool left = inside(x.cell, level.width);
  const bool right = inside(x.cell + 1, level.width);
  const bool top = inside(y.cell, level.height);
  const bool bottom = inside(y.cell + 1, level.height);
  const uint32_t mask_x = (left ? 10u : 0u) | (right ? 20u : 0u);
  const uint32_t mask_y = (top ? 6u : 0u) | (bottom ? 24u : 0u);
  const int32_t cell = level.start + y.cell * level.width + x.cell;
  Sample<T> sample;
  sample.cell_word = (static_cast<uint32_t>(cell) << kMaskBits) + (mask_x & mask_y);
  const float below = weight * y.fraction;
  set_weights(sample, {top ? weight - below : 0.0f, bottom ? below : 0.0f},
              {left ? 1.0f - x.fraction : 0.0f, right ? x.fraction : 0.0f});
  return sample;
}

// A clamped sample.
template <typename T>
__device__ __forceinline__ Sample<T> make_sample(ClampedAxis x, ClampedAxis y, float weight,
                                                 const ClampedLevel& level) {
  Sample<T> sample;
  sample.cell_word = static_cast<uint32_t>(level.start) + static_cast<uint32_t>(x.cell) +
                     static_cast<uint32_t>(y.cell) * static_cast<uint32_t>(level.width);
  set_weights(sample, {weight * y.low, weight * y.high}, {x.low, x.high});
  return sample;
}

// Copies the weights of the sample that a lane of the group holds. Its cell_word travels earlier.
template <int kLanes, typename T>
__device__ __forceinline__ void weights_from_lane(const Sample<T>& held, int lane,
                                                  Sample<T>& sample) {
  if constexpr (std::is_same_v<T, float>) {
#pragma unroll
    for (int c = 0; c < 4; ++c) {
      sample.weight[c] = __shfl_sync(kFullMask, held.weight[c], lane, kLanes);
    }
  } else {
    sample.top = __shfl_sync(kFullMask, held.top, lane, kLanes);
    sample.bottom = __shfl_sync(kFullMask, held.bottom, lane, kLanes);
  }
}

// Blends 16 bytes of the four corners and adds them to the sums of their channels. kMasked: only
// the corners that the mask names.
template <bool kMasked>
__device__ __forceinline__ void blend(const Sample<float>& sample, const uint4 (&corner)[4],
                                      float (&sums)[4]) {
#pragma unroll
  for (int c = 0; c < 4; ++c) {
    if (!kMasked || has_corner(sample.cell_word, c)) {
      sums[0] += sample.weight[c] * __uint_as_float(corner[c].x);
      sums[1] += sample.weight[c] * __uint_as_float(corner[c].y);
      sums[2] += sample.weight[c] * __uint_as_float(corner[c].z);
      sums[3] += sample.weight[c] * __uint_as_float(corner[c].w);
    }
  }
}

template <bool kMasked, typename T>
__device__ __forceinline__ void blend(const Sample<T>& sample, const uint4 (&corner)[4],
                                      float (&sums)[8]) {
  const auto top = bits<Packed<T>>(sample.top);
  const auto bottom = bits<Packed<T>>(sample.bottom);
  const Packed<T> weight[4] = {low_twice(top), high_twice(top), low_twice(bottom),
                               high_twice(bottom)};
  const auto word = [&](int c, int i) {
    return bits<Packed<T>>(i == 0 ? corner[c].x
                                  : (i == 1 ? corner[c].y : (i == 2 ? corner[c].z : corner[c].w)));
  };
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    Packed<T> pair = bits<Packed<T>>(0u);
    if constexpr (!kMasked) pair = multiply_pairs(weight[0], word(0, i));
#pragma unroll
    for (int c = kMasked ? 0 : 1; c < 4; ++c) {
      if (!kMasked || has_corner(sample.cell_word, c)) {
        pair = multiply_add_pairs(weight[c], word(c, i), pair);
      }
    }
    const float2 both = unpack(pair);
    sums[2 * i] += both.x;
    sums[2 * i + 1] += both.y;
  }
}

// The same for 8 bytes of int8. A corner that the mask does not name has the weight zero.
template <bool kMasked>
__device__ __forceinline__ void blend(const Sample<Fixed16>& sample, const uint2 (&corner)[4],
                                      int32_t (&sums)[8]) {
#pragma unroll
  for (int i = 0; i < 2; ++i) {
#pragma unroll
    for (int row = 0; row < 2; ++row) {
      const uint2 left = corner[2 * row], right = corner[2 * row + 1];
      const uint32_t left_word = i == 0 ? left.x : left.y, right_word = i == 0 ? right.x : right.y;
      const uint32_t weights = row == 0 ? sample.top : sample.bottom;
      // Channels 0 and 1, then 2 and 3 of the word: each from the left and the right corner.
      const uint32_t first = select_bytes<0x5140>(left_word, right_word);
      const uint32_t second = select_bytes<0x7362>(left_word, right_word);
      int32_t* const four = sums + 4 * i;
      four[0] = multiply_add_bytes<false>(weights, first, four[0]);
      four[1] = multiply_add_bytes<true>(weights, first, four[1]);
      four[2] = multiply_add_bytes<false>(weights, second, four[2]);
      four[3] = multiply_add_bytes<true>(weights, second, four[3]);
    }
  }
}

}  // namespace msda
