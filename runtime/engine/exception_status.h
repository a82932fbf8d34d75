// What the user's module or LibTorch throws, as a Status: one of the few places where it becomes
// one.
#pragma once

#include <exception>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/str_format.h"

namespace dtrain {

// InvalidArgument with where it came from and the exception's first line: LibTorch appends a
// backtrace to it.
inline absl::Status FromException(const char* where, const std::exception& error) {
  const std::string text = error.what();
  return absl::InvalidArgumentError(
      absl::StrFormat("%s: %s", where, text.substr(0, text.find('\n'))));
}

}  // namespace dtrain
