// One sample as the lanes of a group hand it to each other: where its four corners are and what
// they weigh.
#pragma once

#include <cstdint>
#include <cstring>
#include <type_traits>

#include "msda/packed.cuh"
#include "msda/tiles.cuh"
#include "msda/vector.cuh"

namespace msda {

// A word of 2 to 16 bytes that is read once: it leaves L1 before the cells do, which neighbours
// read again.
template <typename Word>
__device__ __forceinline__ Word load_once(const Word* address) {
#if defined(__CUDA_ARCH__)
  Word word;
  if constexpr (sizeof(Word) == 16) {
    asm("ld.global.nc.L1::evict_first.v4.u32 {%0, %1, %2, %3}, [%4];"
        : "=r"(word.x), "=r"(word.y), "=r"(word.z), "=r"(word.w)
        : "l"(address));
  } else if constexpr (sizeof(Word) == 8) {
    asm("ld.global.nc.L1::evict_first.v2.u32 {%0, %1}, [%2];"
        : "=r"(word.x), "=r"(word.y)
        : "l"(address));
  } else if constexpr (sizeof(Word) == 4) {
    asm("ld.global.nc.L1::evict_first.u32 %0, [%1];" : "=r"(word) : "l"(address));
  } else {
    static_assert(sizeof(Word) == 2);
    asm("ld.global.nc.L1::evict_first.u16 %0, [%1];" : "=h"(word) : "l"(address));
  }
  return word;
#else
  return __ldg(address);
#endif
}

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
      const Word word = load_once(reinterpret_cast<const Word*>(address) + i);
      memcpy(reinterpret_cast<char*>(number) + i * sizeof(Word), &word, sizeof(Word));
    }
  }
  __device__ __forceinline__ float operator[](int i) const { return widen(number[i]); }
};

// Corners count top left, top right, bottom left, bottom right. There are two kinds of samples:
//   outlined  its four corners are where they are, inside of the level or not. `place` is the top
//             left cell among all cells, times 32, plus a bit for each corner that is inside. (Bit
//             0 is free so that one instruction makes predicates of the others.) A corner that is
//             outside has the weight zero.
//   inner     its four corners are four neighbouring cells inside of the level, which has to have
//             two rows and columns: all that it touches are among them, and the others have the
//             weight zero. `place` is the top left cell among all cells.
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

// A pixel coordinate less a half: rounded to the nearest whole number it is the lower one of the
// two cells that it lies between. 16-bit values are not worth the exact remainders of sampling.h.
struct RoughCoordinate {
  float less_half;
};

// The coordinate of a location, or of an offset of so many cells from a reference point.
template <typename T>
__device__ __forceinline__ auto location_coordinate(float location, float size) {
  if constexpr (std::is_same_v<T, float>) {
    return at_location(location, size);
  } else {
    return RoughCoordinate{fmaf(location, size, -1.0f)};
  }
}
template <typename T>
__device__ __forceinline__ auto offset_coordinate(float reference, float offset, float cells,
                                                  float size) {
  if constexpr (std::is_same_v<T, float>) {
    return at_offset(reference, offset * cells, size);
  } else {
    return RoughCoordinate{fmaf(offset, cells, fmaf(reference, size, -1.0f))};
  }
}

// A coordinate's cell and fraction, for an outlined sample. One that is far outside or not finite
// becomes one whose cells are both outside.
struct Place {
  int32_t cell;
  float fraction;
};

__device__ __forceinline__ Place place_of(Coordinate<float> coordinate, float size) {
  const bool touching = touches(coordinate, size);
  return {touching ? static_cast<int32_t>(coordinate.cell) : -2,
          touching ? coordinate.fraction : 0.0f};
}
__device__ __forceinline__ Place place_of(RoughCoordinate coordinate, float size) {
  const float within = fminf(fmaxf(coordinate.less_half, -2.5f), size);  // NaN becomes -2.5
  const float rounded = within + kRounder;
  return {static_cast<int32_t>(__float_as_uint(rounded) - kRounderBits),
          (within - (rounded - kRounder)) + 0.5f};
}

// The lower one of the two cells, both inside, that are nearest to a coordinate, and the weights of
// both: one less the distance, or zero. Zero too of a coordinate that is not finite.
struct Span {
  int32_t cell;  // of a RoughCoordinate: counted on from kRounderBits
  float low;
  float high;
};

__device__ __forceinline__ Span span_of(Coordinate<float> coordinate, float size) {
  const float cell = fminf(fmaxf(coordinate.cell, 0.0f), size - 2.0f);
  const float distance = (coordinate.cell - cell) + coordinate.fraction;
  // What is inside keeps its fraction to the last bit.
  return {static_cast<int32_t>(cell), fmaxf(1.0f - fabsf(distance), 0.0f),
          fmaxf(fminf(distance, 2.0f - distance), 0.0f)};
}
__device__ __forceinline__ Span span_of(RoughCoordinate coordinate, float size) {
  const float rounded =
      fminf(fmaxf(coordinate.less_half + kRounder, kRounder), size + (kRounder - 2.0f));
  const float distance = (coordinate.less_half - (rounded - kRounder)) + 0.5f;
  return {static_cast<int32_t>(__float_as_uint(rounded)), __saturatef(1.0f - fabsf(distance)),
          __saturatef(1.0f - fabsf(distance - 1.0f))};
}

template <typename T>
__device__ __forceinline__ void set_weights(Sample<T>& sample, const float (&rows)[2],
                                            const float (&columns)[2]) {
  if constexpr (std::is_same_v<T, float>) {
#pragma unroll
    for (int c = 0; c < 4; ++c) sample.weight[c] = rows[c / 2] * columns[c % 2];
  } else {
    sample.top = pack<T>(rows[0] * columns[0], rows[0] * columns[1]);
    sample.bottom = pack<T>(rows[1] * columns[0], rows[1] * columns[1]);
  }
}

// An outlined sample. weight: of the sample; of type T at most 1, for it goes into the weights of
// the corners.
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
  set_weights(sample, {top ? weight - below : 0.0f, bottom ? below : 0.0f},
              {left ? 1.0f - x.fraction : 0.0f, right ? x.fraction : 0.0f});
  return sample;
}

// An inner sample.
template <typename T>
__device__ __forceinline__ Sample<T> make_sample(Span x, Span y, float weight,
                                                 const InnerLevel& level) {
  Sample<T> sample;
  sample.place = static_cast<uint32_t>(level.start) + static_cast<uint32_t>(x.cell) +
                 static_cast<uint32_t>(y.cell) * static_cast<uint32_t>(level.columns);
  set_weights(sample, {weight * y.low, weight * y.high}, {x.low, x.high});
  return sample;
}

// The weights of the sample that a lane of the group holds. (Its place comes before them.)
template <int kLanes, typename T>
__device__ __forceinline__ void weights_from_lane(const Sample<T>& own, int lane,
                                                  Sample<T>& sample) {
  if constexpr (std::is_same_v<T, float>) {
#pragma unroll
    for (int c = 0; c < 4; ++c) {
      sample.weight[c] = __shfl_sync(kWholeWarp, own.weight[c], lane, kLanes);
    }
  } else {
    sample.top = __shfl_sync(kWholeWarp, own.top, lane, kLanes);
    sample.bottom = __shfl_sync(kWholeWarp, own.bottom, lane, kLanes);
  }
}

// 16 bytes of the four corners, blended and added to the sums of their channels. kOutlined: of the
// corners that are inside; else of all.
template <bool kOutlined>
__device__ __forceinline__ void blend(const Sample<float>& sample, const uint4 (&corner)[4],
                                      float (&sums)[4]) {
#pragma unroll
  for (int c = 0; c < 4; ++c) {
    if (!kOutlined || has_corner(sample.place, c)) {
      sums[0] += sample.weight[c] * __uint_as_float(corner[c].x);
      sums[1] += sample.weight[c] * __uint_as_float(corner[c].y);
      sums[2] += sample.weight[c] * __uint_as_float(corner[c].z);
      sums[3] += sample.weight[c] * __uint_as_float(corner[c].w);
    }
  }
}

template <bool kOutlined, typename T>
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
    if constexpr (!kOutlined) pair = multiply_pairs(weight[0], word(0, i));
#pragma unroll
    for (int c = kOutlined ? 0 : 1; c < 4; ++c) {
      if (!kOutlined || has_corner(sample.place, c)) {
        pair = multiply_add_pairs(weight[c], word(c, i), pair);
      }
    }
    const float2 both = unpack(pair);
    sums[2 * i] += both.x;
    sums[2 * i + 1] += both.y;
  }
}

}  // namespace msda
