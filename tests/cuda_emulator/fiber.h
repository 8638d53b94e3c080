// A fiber: a stack of its own that the one thread of the process can be on. Switching is a dozen
// instructions where this file knows the processor; elsewhere, or with EMULATOR_UCONTEXT defined,
// it is swapcontext(), which makes a system call each time. Included by emulator.cpp alone.
#pragma once

#include <cstddef>
#include <cstdint>

#if !defined(EMULATOR_UCONTEXT) && !defined(__x86_64__) && !defined(__aarch64__)
#define EMULATOR_UCONTEXT
#endif

#ifdef EMULATOR_UCONTEXT

#include <ucontext.h>

namespace emulator {

class Fiber {
 public:
  // Makes the fiber run entry(), which must not return, from the top of a stack.
  void start(char* stack, size_t bytes, void (*entry)()) {
    getcontext(&context_);
    context_.uc_stack.ss_sp = stack;
    context_.uc_stack.ss_size = bytes;
    context_.uc_link = nullptr;
    makecontext(&context_, entry, 0);
  }
  // Leaves `from`, which is running, and goes on with `to` where it was left, or starts it.
  static void change(Fiber& from, Fiber& to) { swapcontext(&from.context_, &to.context_); }

 private:
  ucontext_t context_;
};

}  // namespace emulator

#else

// Pushes what the calling convention says that a call preserves, stores the stack pointer in *from,
// takes the other one, pops and returns. The modes of the floating-point unit are not part of it:
// no kernel changes them.
extern "C" void emulator_change_stack(void** from, void* to);

#if defined(__x86_64__)

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
}  // namespace emulator

#else

asm(R"(
  .text
  .p2align 4
  .type emulator_change_stack, %function
emulator_change_stack:
  sub sp, sp, #160
  stp x19, x20, [sp]
  stp x21, x22, [sp, #16]
  stp x23, x24, [sp, #32]
  stp x25, x26, [sp, #48]
  stp x27, x28, [sp, #64]
  stp x29, x30, [sp, #80]
  stp d8, d9, [sp, #96]
  stp d10, d11, [sp, #112]
  stp d12, d13, [sp, #128]
  stp d14, d15, [sp, #144]
  mov x9, sp
  str x9, [x0]
  mov sp, x1
  ldp x19, x20, [sp]
  ldp x21, x22, [sp, #16]
  ldp x23, x24, [sp, #32]
  ldp x25, x26, [sp, #48]
  ldp x27, x28, [sp, #64]
  ldp x29, x30, [sp, #80]
  ldp d8, d9, [sp, #96]
  ldp d10, d11, [sp, #112]
  ldp d12, d13, [sp, #128]
  ldp d14, d15, [sp, #144]
  add sp, sp, #160
  ret
  .size emulator_change_stack, . - emulator_change_stack
)");

namespace emulator {
// 64-bit words of a fresh stack: the twenty registers above, x30 (where `ret` goes) among them.
inline constexpr int kFrame = 20;
inline constexpr int kEntry = 11;
}  // namespace emulator

#endif

namespace emulator {

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
  // Leaves `from`, which is running, and goes on with `to` where it was left, or starts it.
  static void change(Fiber& from, Fiber& to) {
    emulator_change_stack(&from.stack_pointer_, to.stack_pointer_);
  }

 private:
  void* stack_pointer_ = nullptr;
};

}  // namespace emulator

#endif
