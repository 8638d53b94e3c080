#include "signals.h"

#include <dlfcn.h>
#include <ucontext.h>
#include <unistd.h>

#include <cstdint>
#include <cstdio>

#include "guarded.h"

namespace emulator {
namespace {

const char* (*stack_in_use)() = nullptr;
void (*report_mistake)(const std::string&) = nullptr;

std::string bad_access(const siginfo_t& info, const ucontext_t& context) {
  const char* const verb = context.uc_mcontext.gregs[REG_ERR] & 2 ? "writes" : "reads";
  const char* const stack = stack_in_use();
  const char* const address = static_cast<const char*>(info.si_addr);
  if (address >= stack && address < stack + sysconf(_SC_PAGESIZE)) {
    return "needs more memory for its local variables than a fiber's stack has";
  }
  const std::string place = GuardedTensor::describe(address);
  if (!place.empty()) return std::string(verb) + " " + place;
  char text[64];
  std::snprintf(text, sizeof(text), "%s address %p", verb, info.si_addr);
  return text;
}

// "[library.so+0x1234]", for addr2line.
std::string code_address(const ucontext_t& context) {
  const auto address = static_cast<uintptr_t>(context.uc_mcontext.gregs[REG_RIP]);
  Dl_info info;
  if (!dladdr(reinterpret_cast<void*>(address), &info)) return {};
  char offset[32];
  std::snprintf(offset, sizeof(offset), "+0x%zx]",
                address - reinterpret_cast<uintptr_t>(info.dli_fbase));
  return std::string(" [") + info.dli_fname + offset;
}

void on_signal(int signal, siginfo_t* info, void* raw_context) {
  const auto& context = *static_cast<const ucontext_t*>(raw_context);
  const bool access = signal == SIGSEGV || signal == SIGBUS;
  report_mistake((access ? bad_access(*info, context)
                         : std::string("a misaligned address, an index outside of its array, or "
                                       "arithmetic without a result")) +
                 code_address(context));
}

}  // namespace

Signals::Signals(const char* (*stack)(), void (*report)(const std::string& what)) {
  stack_in_use = stack;
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

Signals::~Signals() {
  for (int i = 0; i < kNumSignals; ++i) sigaction(kSignals[i], &old_actions_[i], nullptr);
  if (!(old_stack_.ss_flags & SS_ONSTACK)) sigaltstack(&old_stack_, nullptr);
}

}  // namespace emulator
