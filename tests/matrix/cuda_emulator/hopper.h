// The primitives of kernels/include/msda/hopper.cuh on the CPU. Products and copies happen at once.
#pragma once

#include <cstdint>
#include <cstring>

#include "emulator.h"
#include "tensor_core.h"

namespace emulator {

// What a tensor map of TMA has.
struct alignas(64) TensorMap {
  char* data;
  int64_t sizes[5];    // the fastest first
  int64_t strides[5];  // in bytes
  int box[5];
  int element;  // bytes
  int swizzle;  // 128 or 64 bytes
};

inline uint32_t swizzle(uint32_t address, int bytes) {
  return address ^ (address >> 7 & (bytes == 128 ? 7 : 3)) << 4;
}

template <typename Move>
void for_each_element(const TensorMap& map, const int (&at)[5], void* shared, const Move& move) {
  const uint32_t begin = shared_address(shared);
  if (begin % 128 != 0) fail("TMA to a misaligned address");
  uint32_t offset = 0;
  int i[5];
  for (i[4] = 0; i[4] < map.box[4]; ++i[4])
    for (i[3] = 0; i[3] < map.box[3]; ++i[3])
      for (i[2] = 0; i[2] < map.box[2]; ++i[2])
        for (i[1] = 0; i[1] < map.box[1]; ++i[1])
          for (i[0] = 0; i[0] < map.box[0]; ++i[0], offset += map.element) {
            char* global = map.data;
            bool inside = true;
            for (int d = 0; d < 5; ++d) {
              inside &= at[d] + i[d] < map.sizes[d];
              global += (at[d] + i[d]) * map.strides[d];
            }
            move(dynamic_shared() + swizzle(begin + offset, map.swizzle),
                 inside ? global : nullptr);
          }
}

inline void read_tile(void* shared, const TensorMap& map, uint64_t* barrier, const int (&at)[5]) {
  int bytes = map.element;
  for (const int size : map.box) bytes *= size;
  for_each_element(map, at, shared, [&](char* to, const char* from) {
    if (from)
      std::memcpy(to, from, map.element);
    else
      std::memset(to, 0, map.element);
  });
  change(barrier, 0, -bytes);
}

inline void write_tile(const void* shared, const TensorMap& map, int x, int y) {
  const int at[5] = {x, y, 0, 0, 0};
  for_each_element(map, at, const_cast<void*>(shared), [&](const char* from, char* to) {
    if (to) std::memcpy(to, from, map.element);
  });
}

// A number of a matrix that a descriptor of WGMMA names.
template <typename T>
T number(uint64_t descriptor, int row, int k) {
  const uint32_t begin = static_cast<uint32_t>(descriptor & 0x3fff) << 4;
  const uint32_t eight_rows = static_cast<uint32_t>(descriptor >> 32 & 0x3fff) << 4;
  const int width = descriptor >> 62 == 1 ? 128 : 64;
  const uint32_t place =
      begin + row / 8 * eight_rows + row % 8 * width + k * static_cast<int>(sizeof(T));
  T found;
  std::memcpy(&found, dynamic_shared() + swizzle(place, width), sizeof(T));
  return found;
}

// A: a fragment, const uint32_t (&)[4], or a descriptor.
template <typename Sum, int kSums, typename A>
struct GroupLane {
  Sum (&sums)[kSums];
  A a;
  uint64_t b;
  bool add;
};

// The sums of a warp for numbers a [16, kDepth], and b [N, kDepth] by a descriptor of T.
template <typename T, typename Lane, typename Number, int kDepth>
void multiply_rows(void* const* lanes, const Number (&a)[16][kDepth]) {
  for (int i = 0; i < kWarp; ++i) {
    Lane& lane = *static_cast<Lane*>(lanes[i]);
    int j = 0;
    for (auto& bits : lane.sums) {
      const int row = i / 4 + j / 2 % 2 * 8, column = j / 4 * 8 + i % 4 * 2 + j % 2;
      Number sum = lane.add ? static_cast<Number>(bits) : Number{};
      for (int k = 0; k < kDepth; ++k)
        sum += a[row][k] * static_cast<Number>(number<T>(lane.b, column, k));
      bits = static_cast<std::remove_reference_t<decltype(bits)>>(sum);
      ++j;
    }
  }
}

// Int8, with a in registers.
template <int kSums>
void multiply_groups(uint32_t (&sums)[kSums], const uint32_t (&a)[4], uint64_t b, bool add,
                     Site site = here()) {
  using Lane = GroupLane<uint32_t, kSums, const uint32_t(&)[4]>;
  Lane own{sums, a, b, add};
  meet_and_run(
      &own,
      [](void* const* lanes) {
        int a[16][32];
        for (int row = 0; row < 16; ++row)
          for (int k = 0; k < 32; ++k) {
            const Lane& lane = *static_cast<const Lane*>(lanes[row % 8 * 4 + k % 16 / 4]);
            a[row][k] = static_cast<int8_t>(lane.a[row / 8 + k / 16 * 2] >> k % 4 * 8);
          }
        multiply_rows<int8_t, Lane>(lanes, a);
      },
      site);
}

// T is a type of 16 bits, with a in registers.
template <typename T, int kSums>
void multiply_groups(float (&sums)[kSums], const uint32_t (&a)[4], uint64_t b, bool add,
                     Site site = here()) {
  using Lane = GroupLane<float, kSums, const uint32_t(&)[4]>;
  Lane own{sums, a, b, add};
  meet_and_run(
      &own,
      [](void* const* lanes) {
        float a[16][16];
        for (int i = 0; i < kWarp; ++i)
          for (int word = 0; word < 4; ++word) {
            float* const two = &a[i / 4 + word % 2 * 8][i % 4 * 2 + word / 2 * 8];
            unpack<T>(static_cast<const Lane*>(lanes[i])->a[word], two[0], two[1]);
          }
        multiply_rows<T, Lane>(lanes, a);
      },
      site);
}

// The same with a in shared memory. A warp multiplies 16 rows of its warp group's 64.
template <typename T, typename Number, int kDepth, typename Sum, int kSums>
void multiply_shared(Sum (&sums)[kSums], uint64_t a, uint64_t b, bool add, Site site) {
  using Lane = GroupLane<Sum, kSums, uint64_t>;
  Lane own{sums, a, b, add};
  meet_and_run(
      &own,
      [](void* const* lanes) {
        const int first = warp() % 4 * 16;
        Number a[16][kDepth];
        for (int row = 0; row < 16; ++row)
          for (int k = 0; k < kDepth; ++k)
            a[row][k] = static_cast<Number>(
                number<T>(static_cast<const Lane*>(lanes[0])->a, first + row, k));
        multiply_rows<T, Lane>(lanes, a);
      },
      site);
}
template <typename T, int kSums>
void multiply_groups(float (&sums)[kSums], uint64_t a, uint64_t b, bool add, Site site = here()) {
  multiply_shared<T, float, 16>(sums, a, b, add, site);
}
template <int kSums>
void multiply_groups(uint32_t (&sums)[kSums], uint64_t a, uint64_t b, bool add,
                     Site site = here()) {
  multiply_shared<int8_t, int, 32>(sums, a, b, add, site);
}

}  // namespace emulator
