// Folders of the ranks' outputs: LOGS/attempt-A, one for each start of the ranks. The count goes on
// over the launches of a run, so that none appends to the logs of another. Also keeps the outputs
// within a limit, because a rank that floods its own would fill the disk.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace dtrain::launcher {

// "LOGS/attempt-3".
std::string AttemptFolder(const std::string& logs, int number);

// The largest number in `logs`; nothing when it holds no attempt, or is not there.
std::optional<int> NewestAttempt(const std::string& logs);

// A file system's own figures.
struct DiskFacts {
  bool is_read_only = false;
  uint64_t bytes = 0;  // 0: it does not say.
  uint64_t bytes_free = 0;
};

// Why outputs cannot be kept on it, as an error number; 0: they can. Pure.
int WhyNoRoom(const DiskFacts& disk);

// OK if outputs may be kept in the folder `logs`, as far as can be seen without making it: node 0
// may still move the run directory aside. A quota is not seen.
absl::Status CheckLogRoom(const std::string& logs);

// The limit on an output that the text of DTRAIN_LOG_BYTES_MAX gives, "" for the default. 0: none.
absl::StatusOr<uint64_t> LogBytesMax(const std::string& text);

// Empties a file above `bytes_max`, whose last bytes it keeps as PATH.1 (KeptPath), in the place of
// an older one. Writers, which have it open for appending, go on meanwhile; what they write in the
// moment between the copy and the end of the file is lost. After an error the file is as it was.
absl::Status LimitLog(const std::string& path, uint64_t bytes_max);

// Calls LimitLog for each of the files whenever `look` has passed, on a thread of its own: no disk
// holds up the caller, nor its destructor for more than a second.
class LogLimits {
 public:
  LogLimits(std::vector<std::string> paths, uint64_t bytes_max,
            absl::Duration look = absl::Seconds(1));
  LogLimits(const LogLimits&) = delete;
  LogLimits& operator=(const LogLimits&) = delete;
  ~LogLimits();

 private:
  struct Shared;

  const std::shared_ptr<Shared> shared_;  // Outlives this object if the disk hangs.
  std::thread thread_;
};

}  // namespace dtrain::launcher
