// The primitives of kernels/include/msda/tensor_core.cuh on the CPU. A warp's matrices are computed
// by the lane that completes the operation, for all lanes.
#pragma once

#include <cstdint>
#include <cstring>
#include <type_traits>

#include "emulator.h"

namespace emulator {

// The two numbers of T in a word, as floats.
template <typename T>
void unpack(uint32_t word, float& low, float& high) {
  T two[2];
  std::memcpy(two, &word, sizeof(word));
  low = static_cast<float>(two[0]);
  high = static_cast<float>(two[1]);
}

// mma.sync.m16n8k16: a row by row, b column by column.
template <typename T>
void multiply_accumulate(float (&sums)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1,
                         Site site = here()) {
  struct Lane {
    float (&sums)[4];
    const uint32_t (&a)[4];
    uint32_t b[2];
  } own{sums, a, {b0, b1}};
  meet_and_run(
      &own,
      [](void* const* lanes) {
        float a[16][16], b[16][8];
        for (int i = 0; i < kWarp; ++i) {
          const Lane& lane = *static_cast<const Lane*>(lanes[i]);
          const int g = i / 4, t = i % 4;
          for (int word = 0; word < 4; ++word) {
            float* const two = &a[g + word % 2 * 8][2 * t + word / 2 * 8];
            unpack<T>(lane.a[word], two[0], two[1]);
          }
          for (int word = 0; word < 2; ++word) {
            const int k = 2 * t + word * 8;
            unpack<T>(lane.b[word], b[k][g], b[k + 1][g]);
          }
        }
        for (int i = 0; i < kWarp; ++i) {
          const Lane& lane = *static_cast<const Lane*>(lanes[i]);
          for (int j = 0; j < 4; ++j) {
            const int row = i / 4 + j / 2 * 8, column = i % 4 * 2 + j % 2;
            float sum = 0;
            for (int k = 0; k < 16; ++k) sum += a[row][k] * b[k][column];
            lane.sums[j] += sum;
          }
        }
      },
      site);
}

// ldmatrix.x4, and ldmatrix.x4.trans.
inline void load_matrices(uint32_t (&words)[4], const char* shared, bool transposed,
                          Site site = here()) {
  struct Lane {
    uint32_t (&words)[4];
    const char* shared;
    bool transposed;
  } own{words, shared, transposed};
  if (reinterpret_cast<uintptr_t>(shared) % 16 != 0) fail("ldmatrix of a misaligned address");
  meet_and_run(
      &own,
      [](void* const* lanes) {
        const auto lane = [&](int i) -> const Lane& { return *static_cast<const Lane*>(lanes[i]); };
        for (int matrix = 0; matrix < 4; ++matrix) {
          uint16_t numbers[8][8];
          for (int row = 0; row < 8; ++row) {
            std::memcpy(numbers[row], lane(8 * matrix + row).shared, 16);
          }
          for (int i = 0; i < kWarp; ++i) {
            const int g = i / 4, t = i % 4 * 2;
            const uint16_t two[2] = {lane(i).transposed ? numbers[t][g] : numbers[g][t],
                                     lane(i).transposed ? numbers[t + 1][g] : numbers[g][t + 1]};
            std::memcpy(&lane(i).words[matrix], two, sizeof(two));
          }
        }
      },
      site);
}

inline uint32_t shared_address(const void* pointer) {
  return static_cast<uint32_t>(static_cast<const char*>(pointer) - dynamic_shared());
}

// An mbarrier. Bytes are those that TMA has yet to copy.
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

// A thread that comes after the end of the next phase, too, waits for ever.
inline void wait_for_phase(uint64_t* memory, int parity, Site site = here()) {
  come_late();
  for (int tries = 0; tries < 100000; ++tries) {
    Barrier barrier;
    std::memcpy(&barrier, memory, sizeof(barrier));
    if (barrier.phase != static_cast<unsigned>(parity)) return;
    yield();
  }
  fail("waits for ever at a barrier (%s:%d): byte %u", file_name(site), site.line,
       shared_address(memory));
}

}  // namespace emulator
