#include "runtime/job/exception_status.h"

#include <cerrno>
#include <future>
#include <optional>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "base/job_env.h"
#include "base/log.h"
#include "base/status.h"
#include "base/system/resource_limits.h"
#include "c10/util/Exception.h"

namespace dtrain {
namespace {

std::string MessageLine(const std::exception& error) {
  const auto* const torch = dynamic_cast<const c10::Error*>(&error);
  const absl::string_view text = absl::StripLeadingAsciiWhitespace(
      torch != nullptr ? torch->what_without_backtrace() : error.what());
  return std::string(absl::StripTrailingAsciiWhitespace(text.substr(0, text.find('\n'))));
}

// LibTorch's allocator on the host throws a c10::Error where the standard library would throw a
// bad_alloc.
bool LacksHostMemory(const std::string& line) {
  return absl::StrContains(line, "DefaultCPUAllocator: can't allocate memory");
}

void LogBacktrace(const char* where, const std::exception& error) {
  const auto* const torch = dynamic_cast<const c10::Error*>(&error);
  if (torch != nullptr && torch->backtrace() != nullptr) {
    DT_LOG(Error) << "backtrace of the exception " << where << ":\n" << torch->backtrace()->get();
  } else {
    DT_LOG(Error) << "the exception " << where
                  << " carries no backtrace, because LibTorch did not throw it: run the program "
                     "under gdb with `catch throw` to see where it comes from";
  }
}

}  // namespace

bool WantsBacktraces() { return WantsBacktrace(ReadEnvironment()); }

absl::Status FromException(const char* where, const std::exception& error,
                           const std::string& known) {
  const bool logs = WantsBacktraces();
  if (logs) {
    LogBacktrace(where, error);
  }
  if (const auto limit = FromLimitException(error)) {
    return Annotate(*limit, where);
  }
  std::string line = absl::StrCat(where, ": ", MessageLine(error));
  const bool lacks_memory = LacksHostMemory(line);
  if (lacks_memory) {
    absl::StrAppend(&line, LimitsBehind(ENOMEM));
  }
  if (!known.empty()) {
    absl::StrAppend(&line, "; ", known);
  }
  if (!logs && dynamic_cast<const c10::Error*>(&error) != nullptr &&
      !absl::StrContains(known, env::kBacktrace)) {
    absl::StrAppend(&line, "; ", env::kBacktrace, "=1 logs a backtrace");
  }
  return lacks_memory ? absl::ResourceExhaustedError(line) : absl::InvalidArgumentError(line);
}

absl::Status CallSafely(absl::FunctionRef<std::string()> where,
                        absl::FunctionRef<absl::Status()> body) {
  std::optional<absl::Status> status;
  std::packaged_task<void()> task([&] {
    try {
      status = body();
    } catch (const std::exception& error) {
      status = FromException(where().c_str(), error);
    }
  });
  task();  // It keeps an exception of any other type, which goes with it.
  return status.has_value()
             ? *std::move(status)
             : absl::InvalidArgumentError(absl::StrCat(
                   where(),
                   ": something was thrown that is no std::exception, and has no text; throw a "
                   "std::runtime_error, or return an absl::Status"));
}

}  // namespace dtrain
