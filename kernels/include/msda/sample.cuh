// One sample as the lanes of a group hand it to each other: where its four corners are, which of
// them are inside of the level, and what they weigh.
#pragma once

#include <cstdint>
#include <cstring>
#include <type_traits>

#include "msda/packed.cuh"
#include "msda/tiles.cuh"
#include "msda/vector.cuh"

namespace msda {

// kCount numbers of one type as they lie in memory, loaded in words as wide as their alignment
// allows.
template <typename T, int kCount>
struct Raw {
  static constexpr int kBytes = kCount * sizeof(T);
  alignas(kBytes < 16 ? kBytes : 16) T number[kCount];

  // The address is a multiple of kBytes, or of 16.
  __device__ __forceinline__ void load(const T* address) {
    using Word =
        std::conditional_t<kBytes % 16 == 0, uint4,
                           std::conditional_t<kBytes == 8, uint2,
                                              std::conditional_t<kBytes == 4, uint32_t, uint16_t>>>;
    static_assert(kBytes % sizeof(Word) == 0);
#pragma unroll
    for (int i = 0; i < kBytes / static_cast<int>(sizeof(Word)); ++i) {
      const Word word = __ldg(reinterpret_cast<const Word*>(address) + i);
      memcpy(reinterpret_cast<char*>(number) + i * sizeof(Word), &word, sizeof(Word));
    }
  }
  __device__ __forceinline__ float operator[](int i) const { return widen(number[i]); }
};

// Corners count top left, top right, bottom left, bottom right. `place` is the top left cell among
// all cells, times 32, plus a bit for each corner that is inside. (Bit 0 is free so that one
// instruction makes predicates of the others.)
inline constexpr int kPlaceShift = 5;
inline constexpr uint32_t kEveryCorner = 30;
__device__ __forceinline__ bool has_corner(uint32_t place, int corner) {
  return (place & (2u << corner)) != 0;
}
__device__ __forceinline__ int32_t cell_of(uint32_t place) {
  return static_cast<int32_t>(place) >> kPlaceShift;
}

template <typename T>
struct Sample {
  uint32_t place = 0;
  uint32_t top = 0;  // two weights of type T, the left one in the low half
  uint32_t bottom = 0;
};
template <>
struct Sample<float> {
  uint32_t place = 0;
  float weight[4] = {};
};

// A pixel coordinate's cell and fraction. One that is far outside or not finite becomes one whose
// cells are both outside.
struct Place {
  int32_t cell;
  float fraction;
};

__device__ __forceinline__ Place place_of(Coordinate<float> coordinate, float size) {
  const bool touching = touches(coordinate, size);
  return {touching ? static_cast<int32_t>(coordinate.cell) : -2,
          touching ? coordinate.fraction : 0.0f};
}

// Of a pixel less a half. Adding a large number rounds to the nearest cell, in fewer and faster
// instructions than floor().
__device__ __forceinline__ Place nearest_place(float pixel, float size) {
  constexpr float kLarge = 12582912.0f;                   // 1.5 * 2^23, whose last bit counts ones
  const float within = fminf(fmaxf(pixel, -2.5f), size);  // NaN becomes -2.5
  const float rounded = within + kLarge;
  return {static_cast<int32_t>(__float_as_uint(rounded) - __float_as_uint(kLarge)),
          (within - (rounded - kLarge)) + 0.5f};
}

// Where a location, or an offset of so many cells from a reference point, lies. 16-bit values are
// not worth the exact remainders of sampling.h.
template <typename T>
__device__ __forceinline__ Place given_place(float location, float size) {
  if constexpr (std::is_same_v<T, float>) {
    return place_of(at_location(location, size), size);
  } else {
    return nearest_place(fmaf(location, size, -1.0f), size);
  }
}
template <typename T>
__device__ __forceinline__ Place offset_place(float reference, float offset, float cells,
                                              float size) {
  if constexpr (std::is_same_v<T, float>) {
    return place_of(at_offset(reference, offset * cells, size), size);
  } else {
    return nearest_place(fmaf(offset, cells, fmaf(reference, size, -1.0f)), size);
  }
}

// weight: of the sample; of type T at most 1, for it goes into the weights of the corners. A corner
// that is outside has the weight zero.
template <typename T>
__device__ __forceinline__ Sample<T> make_sample(Place x, Place y, float weight,
                                                 const SharedLevel& level) {
  const auto inside = [](int32_t cell, int32_t size) {
    return static_cast<uint32_t>(cell) < static_cast<uint32_t>(size);
  };
  const bool left = inside(x.cell, level.columns);
  const bool right = inside(x.cell + 1, level.columns);
  const bool top = inside(y.cell, level.rows);
  const bool bottom = inside(y.cell + 1, level.rows);
  const uint32_t columns = (left ? 10u : 0u) | (right ? 20u : 0u);
  const uint32_t rows = (top ? 6u : 0u) | (bottom ? 24u : 0u);
  const int32_t cell = level.start + y.cell * level.columns + x.cell;
  Sample<T> sample;
  sample.place = (static_cast<uint32_t>(cell) << kPlaceShift) + (columns & rows);
  const float below = weight * y.fraction;
  const float part[2] = {top ? weight - below : 0.0f, bottom ? below : 0.0f};
  const float share[2] = {left ? 1.0f - x.fraction : 0.0f, right ? x.fraction : 0.0f};
  if constexpr (std::is_same_v<T, float>) {
#pragma unroll
    for (int c = 0; c < 4; ++c) sample.weight[c] = part[c / 2] * share[c % 2];
  } else {
    sample.top = pack<T>(part[0] * share[0], part[0] * share[1]);
    sample.bottom = pack<T>(part[1] * share[0], part[1] * share[1]);
  }
  return sample;
}

// The sample that a lane of the group holds.
template <typename T, int kLanes>
__device__ __forceinline__ Sample<T> from_lane(const Sample<T>& own, int lane) {
  Sample<T> sample;
  sample.place = __shfl_sync(kWholeWarp, own.place, lane, kLanes);
  if constexpr (std::is_same_v<T, float>) {
#pragma unroll
    for (int c = 0; c < 4; ++c) {
      sample.weight[c] = __shfl_sync(kWholeWarp, own.weight[c], lane, kLanes);
    }
  } else {
    sample.top = __shfl_sync(kWholeWarp, own.top, lane, kLanes);
    sample.bottom = __shfl_sync(kWholeWarp, own.bottom, lane, kLanes);
  }
  return sample;
}

// 16 bytes of the four corners, blended and added to the sums of their channels. kExact: of the
// corners that are inside; else of all, for those outside have the weight zero (but zero times
// infinity is NaN).
template <bool kExact>
__device__ __forceinline__ void blend(const Sample<float>& sample, const uint4 (&corner)[4],
                                      float (&sums)[4]) {
#pragma unroll
  for (int c = 0; c < 4; ++c) {
    if (!kExact || has_corner(sample.place, c)) {
      sums[0] += sample.weight[c] * __uint_as_float(corner[c].x);
      sums[1] += sample.weight[c] * __uint_as_float(corner[c].y);
      sums[2] += sample.weight[c] * __uint_as_float(corner[c].z);
      sums[3] += sample.weight[c] * __uint_as_float(corner[c].w);
    }
  }
}

template <bool kExact, typename T>
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
    if constexpr (!kExact) pair = multiply_pairs(weight[0], word(0, i));
#pragma unroll
    for (int c = kExact ? 0 : 1; c < 4; ++c) {
      if (!kExact || has_corner(sample.place, c)) {
        pair = multiply_add_pairs(weight[c], word(c, i), pair);
      }
    }
    const float2 both = unpack(pair);
    sums[2 * i] += both.x;
    sums[2 * i + 1] += both.y;
  }
}

}  // namespace msda
