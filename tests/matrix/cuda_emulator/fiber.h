// A fiber: a stack of its own for the one thread of the process. Switching takes a dozen
// instructions of x86-64. Included by emulator.cpp alone.
#pragma once

#include <cstddef>
#include <cstdint>

// Pushes the registers that a call preserves, stores the stack pointer in *from, loads the other
// one, pops and returns. The modes of the floating-point unit stay: no kernel changes them.
extern "C" void emulator_change_stack(void** from, void* to);

asm(R"(
  .text
  .p2align 4
  .type emulator_change_stack, @function
emulator_change_stack:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
  .size emulator_change_stack, . - emulator_change_stack
)");

namespace emulator {

// 64-bit words of a fresh stack: six registers, the address that `ret` takes, and the return
// address of entry(), which puts the stack pointer where a call would have.
inline constexpr int kFrame = 8;
inline constexpr int kEntry = 6;

class Fiber {
 public:
  // Makes the fiber run entry(), which must not return, from the top of a stack.
  void start(char* stack, size_t bytes, void (*entry)()) {
    const uintptr_t top = (reinterpret_cast<uintptr_t>(stack) + bytes) & ~uintptr_t{15};
    uint64_t* const frame = reinterpret_cast<uint64_t*>(top) - kFrame;
    for (int i = 0; i < kFrame; ++i) frame[i] = 0;
    frame[kEntry] = reinterpret_cast<uint64_t>(entry);
    stack_pointer_ = frame;
  }
  // Leaves `from`, which is running, and continues or starts `to`.
  static void change(Fiber& from, Fiber& to) {
    emulator_change_stack(&from.stack_pointer_, to.stack_pointer_);
  }

 private:
  void* stack_pointer_ = nullptr;
};

}  // namespace emulator
