#include "runtime/memory/memory_fault.h"

#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <mutex>
#include <utility>

#include "base/status.h"

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

struct FileSlot {
  std::atomic<bool> taken{false};
  std::atomic<const std::byte*> begin{nullptr};
  std::atomic<const std::byte*> end{nullptr};
  std::atomic<const std::string*> line{nullptr};
};

std::array<FileSlot, 256> file_slots;
struct sigaction before_segv;
struct sigaction before_bus;

// Gives the signal to the handler that was installed before.
void PassOn(const struct sigaction& before, int signal, siginfo_t* info, void* context) {
  if ((before.sa_flags & SA_SIGINFO) != 0) {
    before.sa_sigaction(signal, info, context);
  } else if (before.sa_handler != SIG_DFL && before.sa_handler != SIG_IGN) {
    before.sa_handler(signal);
  } else {
    sigaction(signal, &before, nullptr);  // The instruction runs again and ends the process.
    if (info->si_code <= 0) {
      raise(signal);  // No instruction: somebody sent it.
    }
  }
}

void OnBus(int signal, siginfo_t* info, void* context) {
  const auto* const at = static_cast<const std::byte*>(info->si_addr);
  for (const FileSlot& slot : file_slots) {
    const std::string* const line = slot.line.load();
    if (line != nullptr && at >= slot.begin.load() && at < slot.end.load()) {
      MemoryFault::SayAndExit({*line}, kExitTemporary);
    }
  }
  PassOn(before_bus, signal, info, context);
}

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
  PassOn(before_segv, signal, info, context);
}

void Install(int signal, void (*handler)(int, siginfo_t*, void*), struct sigaction& before) {
  struct sigaction action = {};
  action.sa_sigaction = handler;
  action.sa_flags = SA_SIGINFO | SA_ONSTACK;
  sigaction(signal, &action, &before);
}

void InstallOnce() {
  static std::once_flag once;
  std::call_once(once, [] { Install(SIGSEGV, OnSignal, before_segv); });
}

void InstallForFilesOnce() {
  static std::once_flag once;
  std::call_once(once, [] { Install(SIGBUS, OnBus, before_bus); });
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

FileFault::FileFault(const void* begin, size_t bytes, std::string line) : line_(std::move(line)) {
  for (size_t i = 0; i < file_slots.size() && slot_ < 0; ++i) {
    FileSlot& slot = file_slots[i];
    if (!slot.taken.exchange(true)) {
      const auto* const first = static_cast<const std::byte*>(begin);
      slot.begin.store(first);
      slot.end.store(first + bytes);
      slot.line.store(&line_);
      slot_ = static_cast<int>(i);
    }
  }
  InstallForFilesOnce();
}

FileFault::~FileFault() {
  if (slot_ >= 0) {
    FileSlot& slot = file_slots[static_cast<size_t>(slot_)];
    slot.line.store(nullptr);
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
