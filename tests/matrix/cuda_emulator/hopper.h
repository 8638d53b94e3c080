// The primitives of kernels/include/msda/hopper.cuh on the CPU. Products and copies happen at once.
#pragma once

#include <cstdint>
#include <cstring>

#include "emulator.h"

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

inline uint32_t shared_address(const void* pointer) {
  return static_cast<uint32_t>(static_cast<const char*>(pointer) - dynamic_shared());
}

inline uint32_t swizzle(uint32_t address, int bytes) {
  return address ^ (address >> 7 & (bytes == 128 ? 7 : 3)) << 4;
}

struct Barrier {
  uint64_t threads : 12, pending : 12, phase : 1;
  int64_t bytes : 39;
};

inline void init_barrier(uint64_t* memory, int threads) {
  Barrier barrier{};
  barrier.threads = barrier.pending = threads;
  std::memcpy(memory, &barrier, sizeof(barrier));
}

inline void change(uint64_t* memory, int threads, int bytes) {
  Barrier barrier;
  std::memcpy(&barrier, memory, sizeof(barrier));
  if (barrier.pending < static_cast<unsigned>(threads))
    fail("more arrivals than threads at a barrier");
  barrier.pending -= threads;
  barrier.bytes += bytes;
  if (barrier.pending == 0 && barrier.bytes == 0)
    barrier.phase ^= 1, barrier.pending = barrier.threads;
  std::memcpy(memory, &barrier, sizeof(barrier));
}

inline void arrive(uint64_t* memory, int bytes) { change(memory, 1, bytes); }

inline void wait_for_phase(uint64_t* memory, int parity, Site site = here()) {
  for (int tries = 0; tries < 100000; ++tries) {
    Barrier barrier;
    std::memcpy(&barrier, memory, sizeof(barrier));
    if (barrier.phase != static_cast<unsigned>(parity)) return;
    yield();
  }
  fail("waits for ever at a barrier (%s:%d): byte %u", file_name(site), site.line,
       shared_address(memory));
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
inline int8_t number(uint64_t descriptor, int row, int k) {
  const uint32_t begin = static_cast<uint32_t>(descriptor & 0x3fff) << 4;
  const uint32_t eight_rows = static_cast<uint32_t>(descriptor >> 32 & 0x3fff) << 4;
  const int width = descriptor >> 62 == 1 ? 128 : 64;
  const uint32_t place = begin + row / 8 * eight_rows + row % 8 * width + k;
  return static_cast<int8_t>(dynamic_shared()[swizzle(place, width)]);
}

template <int kSums>
struct GroupLane {
  uint32_t (&sums)[kSums];
  const uint32_t (&a)[4];
  uint64_t b;
  bool add;
};

template <int kSums>
void multiply_groups(uint32_t (&sums)[kSums], const uint32_t (&a)[4], uint64_t b, bool add,
                     Site site = here()) {
  GroupLane<kSums> own{sums, a, b, add};
  meet_and_run(
      &own,
      [](void* const* lanes) {
        const auto lane = [&](int i) -> GroupLane<kSums>& {
          return *static_cast<GroupLane<kSums>*>(lanes[i]);
        };
        int8_t a[16][32], b[kSums * 2][32];
        for (int row = 0; row < 16; ++row)
          for (int k = 0; k < 32; ++k) {
            const uint32_t word = lane(row % 8 * 4 + k % 16 / 4).a[row / 8 + k / 16 * 2];
            a[row][k] = static_cast<int8_t>(word >> k % 4 * 8);
          }
        for (int n = 0; n < kSums * 2; ++n)
          for (int k = 0; k < 32; ++k) b[n][k] = number(lane(0).b, n, k);
        for (int i = 0; i < kWarp; ++i)
          for (int j = 0; j < kSums; ++j) {
            const int row = i / 4 + j / 2 % 2 * 8, column = j / 4 * 8 + i % 4 * 2 + j % 2;
            int sum = lane(i).add ? static_cast<int>(lane(i).sums[j]) : 0;
            for (int k = 0; k < 32; ++k) sum += a[row][k] * b[column][k];
            lane(i).sums[j] = static_cast<uint32_t>(sum);
          }
      },
      site);
}

}  // namespace emulator
