#include "comm/net/await_key.h"

#include "base/clock.h"

namespace dtrain::comm {

absl::StatusOr<JobKey> AwaitKeyFile(const std::string& path, Deadline deadline,
                                    const absl::Status& missing) {
  constexpr absl::Duration kPoll = absl::Milliseconds(20);
  while (true) {
    auto key = JobKey::FromFile(path);
    if (key.ok() || absl::IsPermissionDenied(key.status())) {
      return key;
    }
    if (deadline.Expired()) {
      return missing;
    }
    Clock::Real().Sleep(kPoll);
  }
}

}  // namespace dtrain::comm
