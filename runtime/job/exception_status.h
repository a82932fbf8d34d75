// Makes a Status of an exception that the user's module or LibTorch throws: one of the few places
// where exceptions are caught. Thread-safe.
#pragma once

#include <exception>
#include <string>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"

namespace dtrain {

// Whether DTRAIN_BACKTRACE asks for backtraces of exceptions.
bool WantsBacktraces();

// ResourceExhausted where the system refused a thread or memory, with the limits behind it. Else
// InvalidArgument with where it came from, the first line of the exception's message without the
// backtrace that LibTorch's exceptions carry, and `known`, what else is known of it. With
// DTRAIN_BACKTRACE=1 the backtrace is logged. Exceptions that are not LibTorch's have none, because
// it can be taken only where they are thrown: then the log says how to get it.
absl::Status FromException(const char* where, const std::exception& error,
                           const std::string& known = "");

// What `body` returns, or FromException of what it throws. Something thrown that is no
// std::exception is InvalidArgument too, and does not end the process. `where` is called only then.
absl::Status CallSafely(absl::FunctionRef<std::string()> where,
                        absl::FunctionRef<absl::Status()> body);

}  // namespace dtrain
