#include "base/check.h"

#include <unistd.h>

#include <array>
#include <atomic>
#include <string>

#include "base/log.h"
#include "base/status.h"

namespace dtrain {
namespace {
constexpr int kHooksMax = 8;
std::array<std::atomic<void (*)()>, kHooksMax> crash_hooks;
std::atomic<int> crash_hook_count{0};
std::atomic<bool> crashing{false};
}  // namespace

void AddCrashHook(void (*hook)()) {
  const int slot = crash_hook_count.fetch_add(1);
  if (slot < kHooksMax) {
    crash_hooks[static_cast<size_t>(slot)] = hook;
  }
}

namespace internal {

CheckFailure::CheckFailure(const char* file, int line, const char* condition) {
  message_ << "DT_CHECK failed at " << file << ":" << line << ": " << condition << " ";
}

CheckFailure::~CheckFailure() {
  if (!crashing.exchange(true)) {  // A hook that fails a check itself must not recurse.
    LogLine(LogLevel::kError, message_.str() + " (a bug of dtrain; please report it)");
    for (auto& hook : crash_hooks) {
      if (auto* function = hook.load()) {
        function();
      }
    }
  }
  _exit(kExitBug);
}

}  // namespace internal
}  // namespace dtrain
