// The seam to the ranks' communication: small texts to rank 0 and back.
//
// All ranks make the same calls in the same order. runtime implements it on the job's store or a
// host group; it must be usable from the thread that saves.
#pragma once

#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "base/deadline.h"

namespace dtrain::checkpoint {

class Exchange {
 public:
  virtual ~Exchange() = default;
  virtual int rank() const = 0;
  virtual int world_size() const = 0;
  // On rank 0, gives every rank's text in rank order. On other ranks, gives nothing, and `mine` may
  // not have arrived yet. Blocks up to `deadline`.
  virtual absl::StatusOr<std::vector<std::string>> Gather(absl::string_view mine,
                                                          Deadline deadline) = 0;
  // On all ranks, gives rank 0's text. Blocks up to `deadline`.
  virtual absl::StatusOr<std::string> Broadcast(absl::string_view text, Deadline deadline) = 0;
  // Does this rank's `work`, which does not use the exchange, and returns when all ranks have done
  // theirs: however long that takes, as long as each rank that still works does a piece of it
  // (base/threads/work_count.h) within about `timeout`. Gives the error of this rank's work, else
  // that of the wait. Here: the work alone.
  virtual absl::Status Together(absl::FunctionRef<absl::Status()> work,
                                absl::Duration /*timeout*/) {
    return work();
  }
};

// The exchange for a job with one rank.
class AloneExchange final : public Exchange {
 public:
  int rank() const override { return 0; }
  int world_size() const override { return 1; }
  absl::StatusOr<std::vector<std::string>> Gather(absl::string_view mine, Deadline) override {
    return std::vector<std::string>{std::string(mine)};
  }
  absl::StatusOr<std::string> Broadcast(absl::string_view text, Deadline) override {
    return std::string(text);
  }
};

}  // namespace dtrain::checkpoint
