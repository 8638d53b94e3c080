// Runs CUDA kernels on the CPU, for tests where there is no GPU.
//
// The threads of a block are fibers that take turns: one runs until it waits at a barrier, shuffle
// or vote, then the next one that can continue runs. Blocks run one after the other. A launch has
// no races in the emulator, but a GPU could take any order of threads between two such points, and
// of blocks: set_order() draws one.
//
// A mistake that a GPU would answer with a hang, garbage or nothing ends the launch with
// cudaErrorLaunchFailure; message() names the kernel, block, thread and line:
//   - a barrier, shuffle or vote that a thread of the block or mask does not reach, or reaches with
//     another mask or at another line;
//   - a shuffle from a lane that does not take part;
//   - waiting for a phase of a barrier in shared memory after the next phase has ended too;
//   - reading or writing outside of a GuardedTensor (guarded.h), or writing to an input;
//   - with the compiler's traps on (compile_for_cpu.py): a misaligned address, an index outside of
//     an array in registers or static shared memory, integer overflow, a shift too far;
//   - reading or writing after the end of dynamic shared memory.
// An asynchronous copy into shared memory happens when its thread waits for it, or, where the order
// is drawn, at any time from its beginning on. Shared memory holds garbage when a block begins. The
// emulator does not find a wrong index through a pointer into shared memory, nor an addition that
// should have been atomic.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

namespace emulator {

inline constexpr int kWarp = 32;

// Clears message(), and sets the order of blocks and threads and the garbage. 0: ascending, and NaN
// in every floating-point type; other numbers are seeds.
void set_order(uint64_t seed);
uint64_t order();

// The message of the launch that failed.
const char* message();

// Ends the launch of the thread that calls it. printf's arguments.
[[noreturn]] __attribute__((format(printf, 1, 2))) void fail(const char* format, ...);

// Runs body(data) once for every thread; `kernel` is for messages.
cudaError_t launch(const cudaLaunchConfig_t& config, const void* kernel, void (*body)(void*),
                   void* data);

// A line of the source. As a default argument here() is that of the caller.
struct Site {
  const char* file;
  int line;
};
constexpr Site here(const char* file = __builtin_FILE(), int line = __builtin_LINE()) {
  return {file, line};
}
const char* file_name(Site site);  // without its folders

enum class Operation {
  kNone,
  kShuffle,  // result: the value that lane `source` brought
  kBallot,   // result: a bit for each lane whose value is not zero
  kAll,      // result: whether all lanes' values are not zero
  kAny,      // result: whether a lane's value is not zero
  kSyncwarp,
  kTogether,  // the warp runs a function once
  kSyncthreads,
  kSyncSome,
};

// Waits for the other threads of the mask (of the warp) that have not returned.
uint64_t meet_warp(Operation operation, unsigned mask, uint64_t value, int source, Site site);

// Waits for the other 31 lanes. The last one calls run(the 32 lanes' `own`) before any goes on.
void meet_and_run(void* own, void (*run)(void* const* lanes), Site site);

// Waits for the other threads of the block that have not returned.
void meet_block(Site site);

// Waits until `count` threads of the block have come to the barrier of this number, 1 to 15.
void meet_some(int barrier, int count, Site site = here());

// The block's dynamic shared memory, which ends at a page that nothing may touch.
char* dynamic_shared();

// Begins to copy 16 bytes to shared memory (0: to clear them); waits for all copies of the thread.
void copy_async(char* shared, const void* global, int bytes, Site site = here());
void wait_for_copies();

// Lets all other threads run that can.
void yield();

// Where the order is drawn, some threads come late: the others run until none can, eight times.
void come_late();

// Number of the calling thread in its warp, and of the warp in its block.
int lane();
int warp();

}  // namespace emulator
