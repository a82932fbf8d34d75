// The limits that the system sets this process (ulimit, and the number of processes of its cgroup):
// which of them is behind an error, and what to raise.
//
// Thread-safe.
#pragma once

#include <cstdint>
#include <exception>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace dtrain {

// "; raise the limit of open files, which is 1024 (ulimit -n)" for EMFILE; likewise for EFBIG (a
// file's size), ENOMEM (address space) and EAGAIN of a thread or process that did not start. "" for
// other errors, and where no limit is set.
std::string LimitsBehind(int error_number);

// A thread or process did not start.
absl::Status CannotStart(absl::string_view what, int error_number);

// Raises the soft limit of open files by `more`, as far as the hard limit allows: for files that
// stay open beside all others. Opening them says what is missing.
void AllowOpenFiles(uint64_t more);

// What std throws when the system refuses a thread or memory, with the limits behind it; nothing
// for any other exception.
std::optional<absl::Status> FromLimitException(const std::exception& error);

// Whether `count` threads can be started now. Starts them and lets them end: who starts one of them
// later, such as OpenMP, may end the process without a word if it cannot.
absl::Status CheckThreads(int count);

// FailedPrecondition when the stack of this process may not grow to what a rank needs: it would end
// with SIGSEGV and nothing would say why.
absl::Status CheckStack();

// A write beyond the limit of a file's size fails with EFBIG instead of ending the process without
// a word, and an exception that nothing catches ends it with a line and the limits behind it.
void EndWithALineAtLimits();

}  // namespace dtrain
