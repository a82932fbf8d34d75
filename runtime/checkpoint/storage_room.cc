#include "runtime/checkpoint/storage_room.h"

#include <optional>
#include <string>

#include "base/console/progress_line.h"
#include "base/log.h"
#include "base/status.h"

namespace dtrain {

void WarnOfLittleRoom(checkpoint::Storage& storage, uint64_t bytes) {
  const std::optional<uint64_t> free = storage.FreeBytes();
  if (free.has_value() && *free < bytes) {
    DT_LOG(Warning) << "a checkpoint takes about " << FormatBytes(static_cast<double>(bytes))
                    << ", but " << storage.DisplayName("") << " has room for "
                    << FormatBytes(static_cast<double>(*free))
                    << ": make room, or set checkpoint.dir to another file system; saves that "
                       "find none are given up, and training goes on";
  }
}

absl::Status ProbeStorage(checkpoint::Storage& storage) {
  const absl::StatusOr<std::string> slower = storage.Probe();
  if (absl::IsResourceExhausted(slower.status())) {
    DT_LOG(Warning) << "a checkpoint could not be written now: " << slower.status().message();
    return absl::OkStatus();
  }
  if (slower.ok() && !slower->empty()) {
    DT_LOG(Info) << "checkpoints in " << storage.DisplayName("") << " are written " << *slower;
  }
  return Annotate(slower.status(), "checkpoints cannot be written");
}

}  // namespace dtrain
