#include "emulator.h"

#include <cxxabi.h>
#include <dlfcn.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <map>
#include <memory>
#include <new>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "fiber.h"
#include "guarded.h"
#include "shared_memory.h"
#include "signals.h"

uint3 threadIdx, blockIdx;
dim3 blockDim, gridDim;

namespace emulator {
namespace {

constexpr size_t kStack = 64 * 1024;
constexpr int kMaxThreads = 1024;

// 16 bytes on the way to shared memory.
struct Copy {
  char* shared;
  const void* global;
  int bytes;

  void finish() const {
    std::memset(shared, 0, 16);
    std::memcpy(shared, global, static_cast<size_t>(bytes));
  }
};

// One thread of the block, and what it waits for.
struct Thread {
  Fiber fiber;
  uint3 index;
  Operation operation = Operation::kNone;
  Site site{};
  unsigned mask = 0;
  int source = 0;
  uint64_t value = 0;
  uint64_t result = 0;
  void (*run)(void* const*) = nullptr;
  std::vector<Copy> copies;
};

struct Warp {
  unsigned alive = 0;    // lanes that have not returned
  unsigned waiting = 0;  // of them, those at a warp's operation
  uint64_t rank = 0;     // see next_thread()
};

uint64_t seed = 0;
std::mt19937_64 generator;
std::string failure;

bool running = false;  // whether a fiber is
bool failed = false;
const void* kernel_of_launch = nullptr;
void (*body_of_launch)(void*) = nullptr;
void* data_of_launch = nullptr;
GuardedTensor* dynamic_memory = nullptr;

Fiber outside;  // the caller of launch()
std::vector<Thread> threads;
std::vector<Warp> warps;
std::deque<int> ready;    // the threads that can continue
std::deque<int> yielded;  // those that continue once no other thread can
int current = 0;
int alive = 0;       // threads of the block that have not returned
int at_barrier = 0;  // of them, those at a barrier of the block
char* stacks = nullptr;

// 0 when the order is not drawn.
uint64_t draw() { return seed == 0 ? 0 : generator(); }

// In turn, or, when the order is drawn, in any order. With odd seeds warps of high rank come up
// more often and run ahead of the others, which shows races that an even pace hides.
int next_thread() {
  if (seed != 0) {
    size_t chosen = draw() % ready.size();
    for (int i = 0; seed % 2 == 1 && i < 8; ++i) {
      const size_t other = draw() % ready.size();
      if (warps[ready[other] / kWarp].rank > warps[ready[chosen] / kWarp].rank) chosen = other;
    }
    std::swap(ready.front(), ready[chosen]);
  }
  const int thread = ready.front();
  ready.pop_front();
  return thread;
}

bool of_block(Operation operation) {
  return operation == Operation::kSyncthreads || operation == Operation::kSyncSome;
}

bool same(Site a, Site b) {
  return a.line == b.line && (a.file == b.file || !std::strcmp(a.file, b.file));
}

// The demangled name of a function that the library exports, without its arguments.
std::string function_name(const void* function) {
  Dl_info info;
  // A kernel of internal linkage has no name here, and what is next to it has.
  if (!dladdr(function, &info) || info.dli_saddr != function) return "a kernel";
  int status = 0;
  const std::unique_ptr<char, void (*)(void*)> demangled(
      abi::__cxa_demangle(info.dli_sname, nullptr, nullptr, &status), std::free);
  std::string text = status == 0 ? demangled.get() : info.dli_sname;
  if (text.rfind("void ", 0) == 0) text.erase(0, 5);
  return text.substr(0, text.rfind('('));
}

std::string coordinates(const uint3& x) {
  return "(" + std::to_string(x.x) + ", " + std::to_string(x.y) + ", " + std::to_string(x.z) + ")";
}

// "a shuffle (softmax.cuh:12, mask 0xffffffff)"
std::string describe(const Thread& thread) {
  static const char* const kNames[] = {"nothing",
                                       "a shuffle",
                                       "__ballot_sync",
                                       "__all_sync",
                                       "__any_sync",
                                       "__syncwarp",
                                       "an operation of the warp",
                                       "__syncthreads",
                                       "bar.sync"};
  std::string text = kNames[static_cast<int>(thread.operation)];
  text += std::string(" (") + file_name(thread.site) + ":" + std::to_string(thread.site.line);
  if (!of_block(thread.operation)) {
    char mask[32];
    std::snprintf(mask, sizeof(mask), ", mask 0x%08x", thread.mask);
    text += mask;
  }
  return text + ")";
}

// Leaves the fibers; the next launch begins with fresh ones.
[[noreturn]] void abandon(const std::string& what, bool whole_block) {
  failure = function_name(kernel_of_launch) + ", block " + coordinates(blockIdx);
  if (!whole_block) failure += ", thread " + coordinates(threads[current].index);
  failure += ": " + what;
  failed = true;
  Fiber::change(threads[current].fiber, outside);
  std::abort();  // not reached
}

[[noreturn]] void report_deadlock() {
  std::map<std::string, std::pair<int, int>> groups;  // number of threads and the first of them
  for (int i = 0; i < static_cast<int>(threads.size()); ++i) {
    const bool returned = !(warps[i / kWarp].alive >> i % kWarp & 1);
    const std::string what = returned ? "returned" : "waiting at " + describe(threads[i]);
    ++groups.try_emplace(what, 0, i).first->second.first;
  }
  std::string text = "no thread can go on";
  for (const auto& [what, threads] : groups) {
    text += "; " + std::to_string(threads.first) + " threads from " +
            std::to_string(threads.second) + " on " + what;
  }
  abandon(text, true);
}

// Continues with the next thread that can.
void change_thread() {
  if (ready.empty()) ready.swap(yielded);
  if (ready.empty()) report_deadlock();
  const int last = current;
  current = next_thread();
  threadIdx = threads[current].index;
  if (current != last) Fiber::change(threads[last].fiber, threads[current].fiber);
}

// Where the order is drawn, the thread that completes an operation has no precedence.
void resume_after_completion() {
  if (seed == 0) return;
  ready.push_back(current);
  change_thread();
}

void finish_warp_operation(Warp& warp, Thread* lanes, unsigned participants) {
  const Thread& first = lanes[__builtin_ctz(participants)];
  unsigned ballot = 0;
  for (unsigned rest = participants; rest != 0; rest &= rest - 1) {
    const int i = __builtin_ctz(rest);
    const Thread& thread = lanes[i];
    if (thread.operation != first.operation || thread.mask != first.mask ||
        !same(thread.site, first.site)) {
      abandon("lanes of its warp meet at different places: lane " +
                  std::to_string(__builtin_ctz(participants)) + " at " + describe(first) +
                  ", lane " + std::to_string(i) + " at " + describe(thread),
              false);
    }
    if (thread.value != 0) ballot |= 1u << i;
  }
  if (first.operation == Operation::kTogether) {
    if (participants != ~0u) abandon(describe(first) + " needs all 32 lanes", false);
    void* own[kWarp];
    for (int i = 0; i < kWarp; ++i) own[i] = reinterpret_cast<void*>(lanes[i].value);
    first.run(own);
  }
  for (unsigned rest = participants; rest != 0; rest &= rest - 1) {
    const int i = __builtin_ctz(rest);
    Thread& thread = lanes[i];
    switch (first.operation) {
      case Operation::kShuffle:
        if (!(participants >> thread.source & 1)) {
          abandon("lane " + std::to_string(i) + " of its warp reads from lane " +
                      std::to_string(thread.source) + ", which does not take part in " +
                      describe(thread),
                  false);
        }
        thread.result = lanes[thread.source].value;
        break;
      case Operation::kAll:
        thread.result = ballot == participants;
        break;
      case Operation::kAny:
        thread.result = ballot != 0;
        break;
      case Operation::kTogether:
        break;
      default:
        thread.result = ballot;
    }
  }
  warp.waiting &= ~participants;
  const int first_thread = static_cast<int>(lanes - threads.data());
  for (unsigned rest = participants; rest != 0; rest &= rest - 1) {
    const int thread = first_thread + __builtin_ctz(rest);
    threads[thread].operation = Operation::kNone;
    if (thread != current) ready.push_back(thread);
  }
}

void finish_block_operation() {
  for (int i = 0; i < static_cast<int>(threads.size()); ++i) {
    Thread& thread = threads[i];
    if (thread.operation != Operation::kSyncthreads) continue;
    thread.operation = Operation::kNone;
    if (i != current) ready.push_back(i);
  }
  at_barrier = 0;
}

// The current thread has returned from the kernel: threads that waited only for it can continue.
void leave_block() {
  Warp& warp = warps[current / kWarp];
  Thread* const lanes = &threads[current / kWarp * kWarp];
  warp.alive &= ~(1u << current % kWarp);
  --alive;
  for (int i = 0; i < kWarp; ++i) {
    if (!(warp.waiting >> i & 1)) continue;
    const unsigned participants = lanes[i].mask & warp.alive;
    if ((participants & ~warp.waiting) == 0) finish_warp_operation(warp, lanes, participants);
  }
  if (at_barrier > 0 && at_barrier == alive) finish_block_operation();
  if (alive == 0) {
    Fiber::change(threads[current].fiber, outside);
  } else {
    change_thread();
  }
  std::abort();  // not reached
}

void fiber_entry() {
  body_of_launch(data_of_launch);
  leave_block();
}

char* stack_of(int thread) { return stacks + thread * kStack; }

void make_stacks() {
  void* const memory = mmap(nullptr, kMaxThreads * kStack, PROT_READ | PROT_WRITE,
                            MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) throw std::bad_alloc();
  stacks = static_cast<char*>(memory);
  const size_t page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  for (int i = 0; i < kMaxThreads; ++i) mprotect(stack_of(i), page, PROT_NONE);
}

void run_block(const SharedMemory& shared, size_t dynamic_bytes) {
  const int garbage = seed == 0 ? 0xff : static_cast<int>(draw() & 0xff);
  std::memset(shared.start, garbage, shared.bytes);
  if (dynamic_bytes > 0) std::memset(dynamic_memory->data(), garbage, dynamic_bytes);
  const int count = static_cast<int>(threads.size());
  ready.clear();
  yielded.clear();
  alive = count;
  at_barrier = 0;
  for (int i = 0; i < count; ++i) {
    Thread& thread = threads[i];
    thread.operation = Operation::kNone;
    thread.copies.clear();
    // The tops of the stacks get different places in the processor's cache.
    thread.fiber.start(stack_of(i), kStack - static_cast<size_t>(i % 64) * 192, fiber_entry);
    ready.push_back(i);
  }
  for (size_t i = 0; i < warps.size(); ++i) {
    const int lanes = std::min(count - static_cast<int>(i) * kWarp, kWarp);
    warps[i] = {lanes == kWarp ? ~0u : (1u << lanes) - 1, 0, draw()};
  }
  current = next_thread();
  threadIdx = threads[current].index;
  Fiber::change(outside, threads[current].fiber);
}

}  // namespace

void set_order(uint64_t new_seed) {
  seed = new_seed;
  generator.seed(seed);
  failure.clear();
}

uint64_t order() { return seed; }

const char* message() { return failure.c_str(); }

const char* file_name(Site site) {
  const char* const slash = std::strrchr(site.file, '/');
  return slash ? slash + 1 : site.file;
}

void fail(const char* format, ...) {
  char text[512];
  va_list arguments;
  va_start(arguments, format);
  std::vsnprintf(text, sizeof(text), format, arguments);
  va_end(arguments);
  abandon(text, false);
}

void yield() {
  yielded.push_back(current);
  change_thread();
}

void come_late() {
  if (draw() % 512 != 1) return;
  for (int i = 0; i < 8; ++i) yield();
}

int lane() { return current % kWarp; }
int warp() { return current / kWarp; }

uint64_t meet_warp(Operation operation, unsigned mask, uint64_t value, int source, Site site) {
  Thread& self = threads[current];
  Warp& warp = warps[current / kWarp];
  const unsigned bit = 1u << current % kWarp;
  self.operation = operation;
  self.site = site;
  self.mask = mask;
  self.source = source;
  self.value = value;
  if (!(mask & bit)) abandon("its own bit is not in the mask of " + describe(self), false);
  warp.waiting |= bit;
  const unsigned participants = mask & warp.alive;
  if ((participants & ~warp.waiting) == 0) {
    finish_warp_operation(warp, &threads[current / kWarp * kWarp], participants);
    resume_after_completion();
  } else {
    change_thread();
  }
  return self.result;
}

void meet_block(Site site) {
  Thread& self = threads[current];
  self.operation = Operation::kSyncthreads;
  self.site = site;
  for (const Thread& other : threads) {
    if (at_barrier == 0) break;
    if (other.operation != Operation::kSyncthreads || &other == &self) continue;
    if (!same(other.site, site)) {
      abandon("comes to " + describe(self) + " while thread " +
                  std::to_string(&other - threads.data()) + " is at " + describe(other),
              false);
    }
    break;  // the others are at the same line as this one
  }
  if (++at_barrier == alive) {
    finish_block_operation();
    resume_after_completion();
  } else {
    change_thread();
  }
}

void meet_and_run(void* own, void (*run)(void* const*), Site site) {
  threads[current].run = run;
  meet_warp(Operation::kTogether, ~0u, reinterpret_cast<uint64_t>(own), 0, site);
}

void meet_some(int barrier, int count, Site site) {
  Thread& self = threads[current];
  self.operation = Operation::kSyncSome;
  self.site = site;
  self.source = barrier;
  std::vector<int> others;
  for (int i = 0; i < static_cast<int>(threads.size()); ++i) {
    const Thread& other = threads[i];
    if (i == current || other.operation != Operation::kSyncSome || other.source != barrier)
      continue;
    others.push_back(i);
  }
  if (static_cast<int>(others.size()) + 1 < count) return change_thread();
  self.operation = Operation::kNone;
  for (const int other : others) {
    threads[other].operation = Operation::kNone;
    ready.push_back(other);
  }
  resume_after_completion();
}

char* dynamic_shared() { return static_cast<char*>(dynamic_memory->data()); }

void copy_async(char* shared, const void* global, int bytes, Site site) {
  if ((reinterpret_cast<uintptr_t>(shared) | reinterpret_cast<uintptr_t>(global)) % 16 != 0) {
    fail("cp.async of a misaligned address (%s:%d)", file_name(site), site.line);
  }
  const Copy copy{shared, global, bytes};
  if (draw() & 1) {
    copy.finish();
  } else {
    threads[current].copies.push_back(copy);
  }
}

void wait_for_copies() {
  for (const Copy& copy : threads[current].copies) copy.finish();
  threads[current].copies.clear();
}

cudaError_t launch(const cudaLaunchConfig_t& config, const void* kernel, void (*body)(void*),
                   void* data) {
  const size_t dynamic_bytes = config.dynamicSmemBytes;
  GuardedTensor dynamic("dynamic shared memory", nullptr, dynamic_bytes,
                        GuardedTensor::Access::kWrite, false);
  dynamic_memory = &dynamic;
  // Blocks of a cluster run one after the other as all blocks do: they share nothing. A kernel that
  // may begin early begins when the one before has ended.
  for (unsigned i = 0; i < config.numAttrs; ++i) {
    if (config.attrs[i].id == cudaLaunchAttributeProgrammaticStreamSerialization) continue;
    const auto& cluster = config.attrs[i].val.clusterDim;
    if (config.attrs[i].id != cudaLaunchAttributeClusterDimension ||
        config.gridDim.x % cluster.x + config.gridDim.y % cluster.y +
            config.gridDim.z % cluster.z) {
      failure =
          "expected clusters that divide the grid, a kernel that may begin early, and no other "
          "attribute of a launch";
      return cudaErrorInvalidConfiguration;
    }
  }
  if (!stacks) make_stacks();
  gridDim = config.gridDim;
  blockDim = config.blockDim;
  kernel_of_launch = kernel;
  body_of_launch = body;
  data_of_launch = data;
  const int count = static_cast<int>(blockDim.x * blockDim.y * blockDim.z);
  if (count > kMaxThreads) return cudaErrorInvalidConfiguration;
  threads.resize(count);
  warps.resize((count + kWarp - 1) / kWarp);
  for (unsigned i = 0; i < static_cast<unsigned>(count); ++i) {
    threads[i].index = {i % blockDim.x, i / blockDim.x % blockDim.y, i / blockDim.x / blockDim.y};
  }
  std::vector<uint64_t> blocks(static_cast<uint64_t>(gridDim.x) * gridDim.y * gridDim.z);
  for (size_t i = 0; i < blocks.size(); ++i) blocks[i] = i;
  for (size_t i = 0; i < blocks.size(); ++i)
    std::swap(blocks[i], blocks[i + draw() % (blocks.size() - i)]);

  const SharedMemory shared = shared_memory();
  const Signals signals([](const std::string& what) {
    if (!running) std::abort();  // the emulator's own mistake
    abandon(what, false);
  });
  failed = false;
  running = true;
  for (size_t i = 0; i < blocks.size() && !failed; ++i) {
    const auto x = static_cast<unsigned>(blocks[i] % gridDim.x);
    const auto yz = static_cast<unsigned>(blocks[i] / gridDim.x);
    blockIdx = {x, yz % gridDim.y, yz / gridDim.y};
    run_block(shared, dynamic_bytes);
  }
  running = false;
  return failed ? cudaErrorLaunchFailure : cudaSuccess;
}

}  // namespace emulator
