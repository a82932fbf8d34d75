#include "base/system/resource_limits.h"

#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <condition_variable>
#include <csignal>
#include <cstdint>
#include <cstdlib>
#include <mutex>
#include <new>
#include <system_error>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/log.h"
#include "base/status.h"

namespace dtrain {
namespace {

struct SystemLimit {
  int which;
  const char* what;
  const char* unit;  // Unit of the limit; "" for a count.
  const char* flag;  // The flag of ulimit for it.
};
constexpr SystemLimit kProcesses = {RLIMIT_NPROC, "the user's processes and threads", "", "-u"};
constexpr SystemLimit kOpenFiles = {RLIMIT_NOFILE, "open files", "", "-n"};
constexpr SystemLimit kFileSize = {RLIMIT_FSIZE, "a file's size", " bytes", "-f"};
constexpr SystemLimit kAddressSpace = {RLIMIT_AS, "address space", " bytes", "-v"};
constexpr SystemLimit kData = {RLIMIT_DATA, "data", " bytes", "-d"};

// The soft limit; nothing if there is none.
std::optional<uint64_t> SoftLimitOf(int which) {
  rlimit limit{};
  const bool is_set = getrlimit(static_cast<__rlimit_resource>(which), &limit) == 0 &&
                      limit.rlim_cur != RLIM_INFINITY;
  return is_set ? std::optional<uint64_t>(limit.rlim_cur) : std::nullopt;
}

void AddLimit(const SystemLimit& limit, std::vector<std::string>& found) {
  if (const auto value = SoftLimitOf(limit.which)) {
    found.push_back(absl::StrCat("the limit of ", limit.what, ", which is ", *value, limit.unit,
                                 " (ulimit ", limit.flag, ")"));
  }
}

std::terminate_handler& PreviousTerminate() {
  static std::terminate_handler previous = nullptr;
  return previous;
}

[[noreturn]] void OnTerminate() {
  if (const std::exception_ptr current = std::current_exception()) {
    try {
      std::rethrow_exception(current);
    } catch (const std::exception& error) {
      if (const auto status = FromLimitException(error)) {
        LogLine(LogLevel::kError, status->message());
        _exit(ExitCodeFor(*status));
      }
    }
  }
  PreviousTerminate()();
  std::abort();
}

}  // namespace

std::string LimitsBehind(int error_number, const SystemRoots& roots) {
  std::vector<std::string> found;
  switch (error_number) {
    case EMFILE:
      AddLimit(kOpenFiles, found);
      break;
    case EFBIG:
      AddLimit(kFileSize, found);
      break;
    case ENOMEM:
      AddLimit(kAddressSpace, found);
      AddLimit(kData, found);
      break;
    case EAGAIN:
      AddLimit(kProcesses, found);
      if (const auto pids = PidsLimit(roots)) {
        found.push_back(absl::StrCat("pids.max of the cgroup or container, which is ", *pids));
      }
      AddLimit(kAddressSpace, found);  // A thread needs a stack.
      break;
    default:
      break;
  }
  return found.empty() ? "" : absl::StrCat("; raise ", absl::StrJoin(found, ", or "));
}

absl::Status CannotStart(absl::string_view what, int error_number) {
  return absl::ResourceExhaustedError(absl::StrCat("cannot start ", what, ": ",
                                                   std::generic_category().message(error_number),
                                                   LimitsBehind(error_number)));
}

void AllowOpenFiles(uint64_t more) {
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) {
    return;
  }
  limit.rlim_cur = more < limit.rlim_max - limit.rlim_cur ? limit.rlim_cur + more : limit.rlim_max;
  setrlimit(RLIMIT_NOFILE, &limit);
}

std::optional<absl::Status> FromLimitException(const std::exception& error) {
  if (const auto* const system = dynamic_cast<const std::system_error*>(&error);
      system != nullptr && system->code() == std::errc::resource_unavailable_try_again) {
    return CannotStart("a thread", EAGAIN);
  }
  if (dynamic_cast<const std::bad_alloc*>(&error) != nullptr) {
    return absl::ResourceExhaustedError(
        absl::StrCat("memory could not be allocated", LimitsBehind(ENOMEM)));
  }
  return std::nullopt;
}

absl::Status CheckThreads(int count) {
  std::mutex mutex;
  std::condition_variable changed;
  bool may_end = false;
  std::vector<std::thread> threads;
  absl::Status status;
  try {
    for (int i = 0; i < count; ++i) {
      threads.emplace_back([&] {
        std::unique_lock lock(mutex);
        changed.wait(lock, [&] { return may_end; });
      });
    }
  } catch (const std::system_error& error) {
    status = CannotStart(absl::StrCat(count, " threads (", threads.size(), " did start)"),
                         error.code().value());
  }
  {
    std::lock_guard lock(mutex);
    may_end = true;
  }
  changed.notify_all();
  for (std::thread& thread : threads) {
    thread.join();
  }
  return status;
}

absl::Status CheckStack() {
  constexpr uint64_t kNeeded = 1 << 20;
  const auto limit = SoftLimitOf(RLIMIT_STACK);
  return !limit || *limit >= kNeeded
             ? absl::OkStatus()
             : absl::FailedPreconditionError(absl::StrCat("the limit of the stack is ", *limit,
                                                          " bytes; allowed: ", kNeeded,
                                                          " or more; raise it (ulimit -s 8192)"));
}

std::string ReserveCpuTime() {
  constexpr rlim_t kReserveMax = 300;
  rlimit limit{};
  if (getrlimit(RLIMIT_CPU, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) {
    return "";
  }
  const rlim_t allowed = limit.rlim_max == RLIM_INFINITY ? limit.rlim_cur : limit.rlim_max;
  const rlim_t reserve = std::clamp<rlim_t>(allowed / 10, 1, kReserveMax);
  if (limit.rlim_cur == limit.rlim_max && limit.rlim_cur > reserve) {
    limit.rlim_cur -= reserve;
    setrlimit(RLIMIT_CPU, &limit);
  }
  const std::string left =
      limit.rlim_cur < allowed
          ? absl::StrCat(" but for ", allowed - limit.rlim_cur, " s, in which a save may end")
          : "";
  return absl::StrCat("the limit of CPU time, which is ", allowed, " s, is used up", left,
                      "; raise it (ulimit -t)");
}

void EndWithALineAtLimits() {
  struct sigaction action {};
  if (sigaction(SIGXFSZ, nullptr, &action) == 0 && action.sa_handler == SIG_DFL) {
    std::signal(SIGXFSZ, SIG_IGN);
  }
  if (PreviousTerminate() == nullptr) {
    PreviousTerminate() = std::set_terminate(OnTerminate);
  }
}

}  // namespace dtrain
