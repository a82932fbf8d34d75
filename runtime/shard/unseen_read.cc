#include "runtime/shard/unseen_read.h"

#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>
#include <mutex>

#include "base/status.h"

namespace dtrain {
namespace {

constexpr size_t kEnginesMax = 16;

struct Slot {
  std::atomic<const UnseenRead::Range*> ranges{nullptr};
  std::atomic<size_t> count{0};
};

std::array<Slot, kEnginesMax> slots;
struct sigaction before_us;

// One write, so that ranks on one terminal do not mix. Only async-signal-safe calls.
[[noreturn]] void SayAndExit(const char* parameter) {
  static char line[1024];
  size_t used = 0;
  for (const char* const text :
       {"error: parameter ", parameter,
        " was read by code that is no LibTorch operation (data_ptr, an accessor, memcpy) while its "
        "memory is shared out (zero_optimization.stage 3); read it inside Engine::WithParameters, "
        "announce it with RECORD_FUNCTION and its inputs, or set stage 2\n"}) {
    const size_t bytes = std::min(std::strlen(text), sizeof(line) - used);
    std::memcpy(line + used, text, bytes);
    used += bytes;
  }
  const ssize_t written = write(STDERR_FILENO, line, used);
  static_cast<void>(written);  // Without a reader there is nothing more to do.
  _exit(kExitUsage);
}

void OnFault(int signal, siginfo_t* info, void* context) {
  const auto* const at = static_cast<const std::byte*>(info->si_addr);
  for (const Slot& slot : slots) {
    const UnseenRead::Range* const ranges = slot.ranges.load();
    for (size_t i = 0; ranges != nullptr && i < slot.count.load(); ++i) {
      if (at >= ranges[i].begin && at < ranges[i].end) {
        SayAndExit(ranges[i].name);
      }
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
    action.sa_sigaction = OnFault;
    action.sa_flags = SA_SIGINFO | SA_ONSTACK;
    sigaction(SIGSEGV, &action, &before_us);
  });
}

}  // namespace

UnseenRead::UnseenRead(const FlatParameters& flat) {
  const size_t width = DTypeBytes(flat.dtype());
  for (size_t i = 0; i < flat.parameters().size(); ++i) {
    if (!flat.is_in_values(i)) {
      continue;
    }
    const plan::LayoutEntry& entry = flat.layout().entries()[i];
    const std::byte* const begin =
        flat.value_range()->data() + static_cast<size_t>(entry.offset) * width;
    ranges_.push_back(
        {begin, begin + static_cast<size_t>(entry.elements) * width, entry.name.c_str()});
  }
  for (size_t i = 0; i < slots.size() && slot_ < 0; ++i) {
    const Range* none = nullptr;
    if (slots[i].ranges.compare_exchange_strong(none, ranges_.data())) {
      slots[i].count.store(ranges_.size());
      slot_ = static_cast<int>(i);
    }
  }
  InstallOnce();  // Without a free slot faults stay bare.
}

UnseenRead::~UnseenRead() {
  if (slot_ >= 0) {
    slots[static_cast<size_t>(slot_)].count.store(0);
    slots[static_cast<size_t>(slot_)].ranges.store(nullptr);
  }
}

}  // namespace dtrain
