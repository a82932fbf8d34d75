// The path of the running program, from which other programs, plugins and configurations are found.
// Thread-safe.
#pragma once

#include <filesystem>
#include <string>
#include <system_error>

namespace dtrain {

// The path of the program, without links; "" if /proc does not tell.
inline std::string OwnProgram() {
  std::error_code error;
  const std::filesystem::path program = std::filesystem::read_symlink("/proc/self/exe", error);
  return error ? "" : program.string();
}

// The program's folder, which holds the other programs; "." if it is not known.
inline std::string OwnFolder() {
  const std::filesystem::path program = OwnProgram();
  return program.empty() ? "." : program.parent_path().string();
}

// PREFIX of PREFIX/bin/NAME; ".." if it is not known.
inline std::string OwnPrefix() {
  const std::string folder = OwnFolder();
  return folder == "." ? ".." : std::filesystem::path(folder).parent_path().string();
}

}  // namespace dtrain
