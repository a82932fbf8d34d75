#include "runtime/shard/memory_fault.h"

#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <mutex>

namespace dtrain {
namespace {

constexpr size_t kWatchedMax = 16;

// Plain data, which a signal handler may read. Whoever sees a listener sees its range.
struct Slot {
  std::atomic<bool> taken{false};
  std::atomic<const std::byte*> begin{nullptr};
  std::atomic<const std::byte*> end{nullptr};
  std::atomic<MemoryFault::Listener*> listener{nullptr};
};

std::array<Slot, kWatchedMax> slots;
struct sigaction before_us;

void OnSignal(int signal, siginfo_t* info, void* context) {
  const int error = errno;
  const auto* const at = static_cast<const std::byte*>(info->si_addr);
  for (const Slot& slot : slots) {
    MemoryFault::Listener* const listener = slot.listener.load();
    if (listener != nullptr && at >= slot.begin.load() && at < slot.end.load() &&
        listener->OnFault(at)) {
      errno = error;
      return;
    }
  }
  if ((before_us.sa_flags & SA_SIGINFO) != 0) {
    before_us.sa_sigaction(signal, info, context);
  } else if (before_us.sa_handler != SIG_DFL && before_us.sa_handler != SIG_IGN) {
    before_us.sa_handler(signal);
  } else {
    sigaction(SIGSEGV, &before_us, nullptr);  // The instruction runs again and ends the process.
  }
}

void InstallOnce() {
  static std::once_flag once;
  std::call_once(once, [] {
    struct sigaction action = {};
    action.sa_sigaction = OnSignal;
    action.sa_flags = SA_SIGINFO | SA_ONSTACK;
    sigaction(SIGSEGV, &action, &before_us);
  });
}

}  // namespace

MemoryFault::MemoryFault(const std::byte* begin, size_t bytes, Listener& listener) {
  for (size_t i = 0; i < slots.size() && slot_ < 0; ++i) {
    if (!slots[i].taken.exchange(true)) {
      slots[i].begin.store(begin);
      slots[i].end.store(begin + bytes);
      slots[i].listener.store(&listener);
      slot_ = static_cast<int>(i);
    }
  }
  InstallOnce();
}

bool MemoryFault::active() const {
  struct sigaction now;
  return slot_ >= 0 && sigaction(SIGSEGV, nullptr, &now) == 0 && now.sa_sigaction == OnSignal;
}

MemoryFault::~MemoryFault() {
  if (slot_ >= 0) {
    Slot& slot = slots[static_cast<size_t>(slot_)];
    slot.listener.store(nullptr);
    slot.taken.store(false);
  }
}

// One write, so that ranks on one terminal do not mix. Only async-signal-safe calls.
void MemoryFault::SayAndExit(std::initializer_list<absl::string_view> texts, int code) {
  static char line[1024];
  size_t used = 0;
  for (const absl::string_view text : texts) {
    const size_t bytes = std::min(text.size(), sizeof(line) - 1 - used);
    std::memcpy(line + used, text.data(), bytes);
    used += bytes;
  }
  line[used++] = '\n';
  const ssize_t written = write(STDERR_FILENO, line, used);
  static_cast<void>(written);  // Without a reader there is nothing more to do.
  _exit(code);
}

}  // namespace dtrain
