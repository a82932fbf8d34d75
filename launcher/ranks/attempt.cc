#include "launcher/ranks/attempt.h"

#include "absl/strings/str_format.h"
#include "base/status.h"

namespace dtrain::launcher {

std::string Attempt::LogPath(int rank, const char* suffix) const {
  return absl::StrFormat("%s/rank-%d.%s", log_dir, rank, suffix);
}

SpawnRequest Attempt::RequestWith(const Environment& variables) const {
  SpawnRequest request;
  request.program = program;
  request.name = name;
  request.arguments = arguments;
  request.environment = EnvironmentEntries(variables);
  request.token_fd = token_fd;
  return request;
}

int ExitCodeOf(const AttemptResult& result) {
  const int code = JobExitCode(result.ends, result.stop);
  return code == 0 && !result.error.ok() ? ExitCodeFor(result.error) : code;
}

}  // namespace dtrain::launcher
