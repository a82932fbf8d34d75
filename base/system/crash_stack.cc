#include "base/system/crash_stack.h"

#include <execinfo.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstddef>
#include <cstring>

namespace dtrain {
namespace {

constexpr int kFramesMax = 64;
constexpr size_t kHandlerStackBytes = size_t{64} << 10;

// Sanitizers have handlers of their own, which say more.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr bool kHasSanitizer = true;
#else
constexpr bool kHasSanitizer = false;
#endif

std::atomic<void (*)(int)> after_stack{nullptr};

void WriteText(const char* text) {
  [[maybe_unused]] const ssize_t written = write(STDERR_FILENO, text, std::strlen(text));
}

// Only functions that are async-signal-safe, and backtrace, which is once its library is loaded.
void WriteStack(int signal) {
  std::array<char, 4> number = {static_cast<char>('0' + signal / 10),
                                static_cast<char>('0' + signal % 10), '\n', '\0'};
  WriteText(kStackBegins);
  WriteText(number.data());
  std::array<void*, kFramesMax> frames{};
  const int count = backtrace(frames.data(), kFramesMax);
  backtrace_symbols_fd(frames.data(), count, STDERR_FILENO);
  WriteText(kStackEnds);
  WriteText("\n");
}

void OnCrash(int signal) {
  WriteStack(signal);
  // Also where a handler that was installed later has called this one.
  std::signal(signal, SIG_DFL);
  raise(signal);  // Now as without a handler, when this one returns.
}

void OnRequest(int signal) {
  const int error = errno;  // Belongs to the code that the signal interrupts.
  WriteStack(signal);
  if (auto* const then = after_stack.load(); then != nullptr) {
    then(signal);
  }
  errno = error;
}

// The first call loads a library, which a handler may not do.
void LoadUnwinder() {
  std::array<void*, 1> frame{};
  backtrace(frame.data(), 1);
}

}  // namespace

void WriteStackAtCrash() {
  if (kHasSanitizer) {
    return;
  }
  LoadUnwinder();
  static std::array<std::byte, kHandlerStackBytes> memory;  // For a stack that has overflowed.
  stack_t stack{};
  stack.ss_sp = memory.data();
  stack.ss_size = memory.size();
  sigaltstack(&stack, nullptr);
  struct sigaction action {};
  action.sa_handler = OnCrash;
  action.sa_flags = static_cast<int>(SA_RESETHAND) | SA_ONSTACK;
  for (const int signal : {SIGSEGV, SIGABRT, SIGFPE, SIGILL}) {
    sigaction(signal, &action, nullptr);
  }
}

void WriteStackAtSignal(int signal, void (*then)(int signal)) {
  LoadUnwinder();
  after_stack.store(then);
  struct sigaction action {};
  action.sa_handler = OnRequest;
  action.sa_flags = SA_RESTART;
  sigaction(signal, &action, nullptr);
}

}  // namespace dtrain
