// Signals that a kernel's mistakes raise, by bad addresses and by the compiler's traps. Included by
// emulator.cpp alone.
#pragma once

#include <dlfcn.h>
#include <signal.h>
#include <ucontext.h>

#include <cstdint>
#include <cstdio>
#include <string>

#include "guarded.h"

namespace emulator {

// Takes the signals over while it lives, and gives them back. report(what) must not return.
class Signals {
 public:
  explicit Signals(void (*report)(const std::string& what)) {
    report_mistake = report;
    static char memory[64 * 1024];
    stack_t own{};
    own.ss_sp = memory;
    own.ss_size = sizeof(memory);
    sigaltstack(&own, &old_stack_);
    struct sigaction action{};
    action.sa_sigaction = on_signal;
    // report() leaves the handler for good, so the signal must not stay blocked.
    action.sa_flags = SA_SIGINFO | SA_ONSTACK | SA_NODEFER;
    for (int i = 0; i < kNumSignals; ++i) sigaction(kSignals[i], &action, &old_actions_[i]);
  }
  ~Signals() {
    for (int i = 0; i < kNumSignals; ++i) sigaction(kSignals[i], &old_actions_[i], nullptr);
    if (!(old_stack_.ss_flags & SS_ONSTACK)) sigaltstack(&old_stack_, nullptr);
  }

 private:
  static constexpr int kSignals[] = {SIGSEGV, SIGBUS, SIGILL, SIGTRAP, SIGFPE};
  static constexpr int kNumSignals = sizeof(kSignals) / sizeof(kSignals[0]);
  inline static void (*report_mistake)(const std::string&) = nullptr;

  static void on_signal(int signal, siginfo_t* info, void* raw_context) {
    const auto& registers = static_cast<const ucontext_t*>(raw_context)->uc_mcontext.gregs;
    const bool access = signal == SIGSEGV || signal == SIGBUS;
    const char* const verb = registers[REG_ERR] & 2 ? "writes " : "reads ";
    report_mistake((access ? bad_access(verb, static_cast<const char*>(info->si_addr))
                           : "a misaligned address, an index outside of its array, or "
                             "arithmetic without a result") +
                   code_address(static_cast<uintptr_t>(registers[REG_RIP])));
  }

  static std::string bad_access(const char* verb, const char* address) {
    const std::string place = GuardedTensor::describe(address);
    return verb + (place.empty() ? "memory of no tensor, or has too many local variables" : place);
  }

  // " [library.so+0x1234]", for `addr2line -Cfpis -e library.so 0x1234`.
  static std::string code_address(uintptr_t address) {
    Dl_info info;
    if (!dladdr(reinterpret_cast<void*>(address), &info)) return {};
    char offset[32];
    std::snprintf(offset, sizeof(offset), "+0x%zx]",
                  address - reinterpret_cast<uintptr_t>(info.dli_fbase));
    return std::string(" [") + info.dli_fname + offset;
  }

  stack_t old_stack_;
  struct sigaction old_actions_[kNumSignals];
};

}  // namespace emulator
