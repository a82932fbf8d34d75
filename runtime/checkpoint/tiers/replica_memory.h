// The memory in which a host keeps the newest snapshot of another host's ranks
// (checkpoint.replicas): files in a folder of a tmpfs, /dev/shm by default.
//
// Memory of the ranks themselves would be lost with them, because one rank's death ends all ranks
// of a job. The files outlive the ranks and their agent, so that the next attempt finds them
// whoever starts it, and end with the machine. The folder is named by the run, so that no other job
// takes its files for its own. It is removed when a run ends and its last checkpoint has reached
// the tier behind. If a run never ends so, a later run on the host removes its
// folder, once nobody uses it and it is a day old.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "base/unique_fd.h"
#include "checkpoint/storage/storage.h"

namespace dtrain {

class ReplicaMemory {
 public:
  // Opens, and creates if it is missing, the folder of a run in `directory`, and marks it as used
  // until this object dies. PermissionDenied: the folder is another user's.
  static absl::StatusOr<std::unique_ptr<ReplicaMemory>> Open(const std::string& directory,
                                                             const std::string& run_id);

  checkpoint::Storage& storage() { return *storage_; }
  const std::string& folder() const { return folder_; }
  // Bytes that files here may take, those included that are here already.
  uint64_t RoomBytes();
  // Removes the folder with all that is in it.
  absl::Status Remove();

 private:
  ReplicaMemory(std::string folder, std::unique_ptr<checkpoint::Storage> storage, UniqueFd lock)
      : folder_(std::move(folder)), storage_(std::move(storage)), lock_(std::move(lock)) {}

  const std::string folder_;
  const std::unique_ptr<checkpoint::Storage> storage_;
  const UniqueFd lock_;  // A lock of the folder that the host's ranks share.
};

// Removes folders of other runs in `directory` that belong to this user, that no process uses, and
// in which nothing was written for `age`. Those that cannot be removed are left.
void RemoveStaleReplicas(const std::string& directory, const std::string& own_folder,
                         absl::Duration age);

struct ReplicaRoom {
  uint64_t snapshot_bytes = 0;  // The ranks of the other host save so much at a time.
  uint64_t room_bytes = 0;      // ReplicaMemory::RoomBytes.
  uint64_t allowed_bytes = 0;   // checkpoint.replica_memory; 0: as much as there is.
  uint64_t staging_bytes = 0;   // checkpoint.staging_memory of the host's ranks.
  std::string folder;
};

// InvalidArgument unless two snapshots fit: the newest whole one and the one that is being written.
// Pure.
absl::Status CheckReplicaRoom(const ReplicaRoom& room);

// The bytes that replicas of the step journal may take beside the two snapshots: the rest of what
// is allowed, and where nothing is set half of the rest of what is free. Pure.
uint64_t JournalRoomBytes(const ReplicaRoom& room);

}  // namespace dtrain
