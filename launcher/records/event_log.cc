#include "launcher/records/event_log.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/file.h"
#include "base/status.h"

namespace dtrain::launcher {
namespace {

// A crash or a full disk may have torn the last line, and the next one must not be a part of it.
void EndTornLine(int fd) {
  struct stat facts {};
  char last = '\n';
  if (fstat(fd, &facts) == 0 && S_ISREG(facts.st_mode) && facts.st_size > 0 &&
      pread(fd, &last, 1, facts.st_size - 1) == 1 && last != '\n') {
    WriteFully(fd, "\n", 1).IgnoreError();  // A full disk is told of by the next event.
  }
}

}  // namespace

absl::StatusOr<EventLog> EventLog::Open(const std::string& path, EventIdentity identity) {
  DT_ASSIGN_OR_RETURN(UniqueFd fd, OpenFile(path, O_RDWR | O_CREAT | O_APPEND));
  EndTornLine(fd.get());
  return EventLog(std::move(fd), std::move(identity));
}

absl::Status EventLog::Append(const std::string& event, const Json& fields, const Clock& clock) {
  Json line = {{"v", 1},
               {"ts", absl::ToDoubleSeconds(clock.WallTime() - absl::UnixEpoch())},
               {"run", identity_.run_id},
               {"node", identity_.node},
               {"event", event}};
  for (const auto& [name, value] : fields.items()) {
    line[name] = value;
  }
  const std::string text = DumpJson(line) + "\n";
  if (may_be_torn_) {
    EndTornLine(fd_.get());
  }
  // One write for each line, so that lines never interleave.
  const absl::Status written = WriteFully(fd_.get(), text.data(), text.size());
  may_be_torn_ = !written.ok();
  return written;
}

}  // namespace dtrain::launcher
