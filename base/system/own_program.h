// Where the running program is: other programs, plugins and configurations are found from there.
// Thread-safe.
#pragma once

#include <filesystem>
#include <string>
#include <system_error>

namespace dtrain {

// The path of the program, without links; "" where /proc does not say.
inline std::string OwnProgram() {
  std::error_code error;
  const std::filesystem::path program = std::filesystem::read_symlink("/proc/self/exe", error);
  return error ? "" : program.string();
}

// Its folder, with the programs beside it; "." where that is not known.
inline std::string OwnFolder() {
  const std::filesystem::path program = OwnProgram();
  return program.empty() ? "." : program.parent_path().string();
}

// PREFIX of PREFIX/bin/NAME; ".." where that is not known.
inline std::string OwnPrefix() {
  const std::string folder = OwnFolder();
  return folder == "." ? ".." : std::filesystem::path(folder).parent_path().string();
}

}  // namespace dtrain
