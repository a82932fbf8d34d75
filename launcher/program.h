// The program to launch: where its file is, and which run directory its arguments name. No state;
// thread-safe.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace dtrain::launcher {

// The path to execute for `name`: `name` itself when it has a slash, otherwise the first executable
// file of that name in the folders of `path_variable` (the PATH). Errors (NotFound,
// PermissionDenied, InvalidArgument) say where it looked and what to do.
absl::StatusOr<std::string> FindProgram(const std::string& name, absl::string_view path_variable);

// The value of the last --run-dir (or --run_dir) among a program's arguments, "" without one. Pure.
std::string RunDirInArguments(const std::vector<std::string>& arguments);

// The last path component. Pure.
std::string BaseName(absl::string_view path);

}  // namespace dtrain::launcher
