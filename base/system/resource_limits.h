// The limits that the system sets for this process (ulimit, and its cgroup's number of processes):
// finds the one that caused an error, and says what to raise.
//
// Thread-safe.
#pragma once

#include <cstdint>
#include <exception>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "base/system/cgroup.h"

namespace dtrain {

// "; raise the limit of open files, which is 1024 (ulimit -n)" for EMFILE, and similar texts for
// EFBIG (a file's size), ENOMEM (address space) and EAGAIN (a thread or process that did not
// start: the user's limit, and pids.max of a container). "" for other errors, and if no limit is
// set.
std::string LimitsBehind(int error_number, const SystemRoots& roots = {});

// The error of a thread or process that could not be started, with the limits behind it.
absl::Status CannotStart(absl::string_view what, int error_number);

// Raises the soft limit of open files by `more`, as far as the hard limit allows: for files that
// stay open beside all others. If the limit is still too low, opening them fails.
void AllowOpenFiles(uint64_t more);

// The error for an exception that std throws when the system refuses a thread or memory, with the
// limits behind it; nothing for any other exception.
std::optional<absl::Status> FromLimitException(const std::exception& error);

// Checks whether `count` threads can be started now, by starting them. A library that fails to
// start them later, such as OpenMP, may end the process without a message.
absl::Status CheckThreads(int count);

// FailedPrecondition when the stack of this process may not grow to what a rank needs: it would
// otherwise end with SIGSEGV and without a message.
absl::Status CheckStack();

// Makes SIGXCPU come while this process may still compute: the kernel kills it without a line when
// its CPU time reaches the hard limit, so a soft limit that is as high is lowered by a tenth, up to
// 300 s. Gives what to say when the signal comes: "the limit of CPU time, which is 3600 s, is ...;
// raise it (ulimit -t)"; "" without a limit.
std::string ReserveCpuTime();

// From now on a write beyond the limit of a file's size fails with EFBIG instead of ending the
// process without a message, and an exception that nothing catches ends it with a line that names
// the limits behind it.
void EndWithALineAtLimits();

}  // namespace dtrain
