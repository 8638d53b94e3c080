// Signals that a kernel's mistakes raise, by bad addresses and by the compiler's traps.
#pragma once

#include <signal.h>

#include <string>

namespace emulator {

// Takes the signals over while it lives, and gives them back. The stack that is in use has a page
// that must not be touched at its lowest address, which stack() tells; report(what) must not
// return.
class Signals {
 public:
  Signals(const char* (*stack)(), void (*report)(const std::string& what));
  ~Signals();
  Signals(const Signals&) = delete;
  Signals& operator=(const Signals&) = delete;

 private:
  static constexpr int kSignals[] = {SIGSEGV, SIGBUS, SIGILL, SIGTRAP, SIGFPE};
  static constexpr int kNumSignals = sizeof(kSignals) / sizeof(kSignals[0]);

  stack_t old_stack_;
  struct sigaction old_actions_[kNumSignals];
};

}  // namespace emulator
