#include "launcher/records/event_log.h"

#include <fcntl.h>

#include "base/file.h"
#include "base/status.h"

namespace dtrain::launcher {

absl::StatusOr<EventLog> EventLog::Open(const std::string& path, EventIdentity identity) {
  DT_ASSIGN_OR_RETURN(UniqueFd fd, OpenFile(path, O_WRONLY | O_CREAT | O_APPEND));
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
  // One write for each line, so that lines never interleave.
  return WriteFully(fd_.get(), text.data(), text.size());
}

}  // namespace dtrain::launcher
