// Runs the built `dtrain` program in a folder of its own and watches it from outside, as a user
// would.
#pragma once

#include <sys/types.h>

#include <string>
#include <vector>

#include "absl/time/time.h"
#include "launcher/temp_dir.h"

namespace dtrain::launcher {

class LaunchedJob {
 public:
  // Starts `dtrain ARGUMENTS` in a fresh folder, which is also its TMPDIR; `prefix` goes before it
  // (ip netns exec NAME).
  explicit LaunchedJob(const std::vector<std::string>& arguments,
                       const std::vector<std::string>& prefix = {});
  ~LaunchedJob();  // Kills the remaining processes and removes the folder.

  // Waits for its end: the exit code, 128 + signal when killed, -1 when `timeout` passed.
  int Wait(absl::Duration timeout = absl::Seconds(60));
  void Signal(int signal) const;
  // Waits until `path` (in the folder) holds `text`; false when that takes a minute.
  bool AwaitText(const std::string& path, const std::string& text) const;
  // Content of a file in the folder; "" when it does not exist.
  std::string File(const std::string& path) const;
  // The program's standard output and standard error.
  std::string Out() const { return File("stdout"); }
  std::string Err() const { return File("stderr"); }
  const std::string& folder() const { return folder_.path(); }
  // Processes whose environment names this job's folder, without the launcher and its guard.
  std::vector<pid_t> Ranks() const;
  // Waits until there are `count` of them; false after 30 s. A process has no environment for a
  // moment while it begins to execute its program.
  bool AwaitRanks(size_t count) const;
  // Waits until no such process and no agent folder is left; false after 30 s.
  bool AwaitNothingLeft() const;

 private:
  TempDir folder_;
  pid_t pid_ = -1;
};

}  // namespace dtrain::launcher
