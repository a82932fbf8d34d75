// Status propagation and the one table from Status to exit code.
//
// Expected failures travel as absl::Status / absl::StatusOr; these macros pass them up.
// Thread-safe.
#pragma once

#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace dtrain {

// Exit codes of a rank and of the job (docs/FAILURES.md holds the same table with the restart
// rule).
enum ExitCode : int {
  kExitOk = 0,
  kExitUsage = 64,      // Wrong usage, configuration or data; an exception of the user's module.
  kExitBug = 70,        // A bug of dtrain.
  kExitTemporary = 75,  // Node, network or storage; SIGTERM without a committed save.
  kExitStop = 93,       // No progress: never requeue.
  kExitInterrupted = 130,
  kExitTerminated = 143,  // SIGTERM and the save is committed.
};

// The exit code of a program that ends with `status`.
int ExitCodeFor(const absl::Status& status);

// `status` with "prefix: " before its message; code and payloads are kept. OK stays OK.
absl::Status Annotate(const absl::Status& status, absl::string_view prefix);

// A Status of the code that suits `error_number` (ENOSPC -> ResourceExhausted, ...), with the text
// "what: strerror(error_number)".
absl::Status ErrnoStatus(int error_number, absl::string_view what);

}  // namespace dtrain

#define DT_CONCAT_INNER(a, b) a##b
#define DT_CONCAT(a, b) DT_CONCAT_INNER(a, b)

// Evaluates `expr` (Status) and returns it from this function when it is an error.
#define DT_RETURN_IF_ERROR(expr)                              \
  do {                                                        \
    if (absl::Status dt_status_ = (expr); !dt_status_.ok()) { \
      return dt_status_;                                      \
    }                                                         \
  } while (false)

// Evaluates `expr` (StatusOr<T>); returns its error, or assigns its value to `lhs`.
#define DT_ASSIGN_OR_RETURN(lhs, expr) \
  DT_ASSIGN_OR_RETURN_INNER(DT_CONCAT(dt_status_or_, __LINE__), lhs, expr)
#define DT_ASSIGN_OR_RETURN_INNER(var, lhs, expr) \
  auto var = (expr);                              \
  if (!var.ok()) {                                \
    return std::move(var).status();               \
  }                                               \
  lhs = std::move(var).value()  // NOLINT(bugprone-macro-parentheses): may be a declaration.
