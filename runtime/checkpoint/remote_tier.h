// The second place of checkpoints (checkpoint.remote): a folder on other storage, or an object
// store. A thread of rank 0 copies there what is durable beside the ranks, one checkpoint at a
// time, the newest first; training never waits for it. A run that starts on nodes that have lost
// theirs, or where the newest one is damaged, brings the newest whole one back.
//
// A place that cannot be reached is an alarm in the metrics and the log; the next durable
// checkpoint tries again. For the thread that trains, on rank 0.
#pragma once

#include <atomic>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/threads/work_count.h"
#include "base/threads/worker.h"
#include "checkpoint/commit/retention.h"
#include "checkpoint/format/step_id.h"
#include "checkpoint/restore/reader.h"
#include "checkpoint/storage/storage.h"
#include "dtrain/job.h"

namespace dtrain {

// Checkpoints that were found to be damaged while they were read.
using DamagedTries = std::map<checkpoint::StepId, checkpoint::AttemptOptions::DamagedTry>;

// Opens a folder, or an object store by its s3:// address.
absl::StatusOr<std::unique_ptr<checkpoint::Storage>> OpenPlace(const std::string& place);

class RemoteTier {
 public:
  // Without a place (""), and on other ranks than 0, all calls do nothing. An error says that the
  // place cannot be used. REQUIRES: both outlive the result.
  static absl::StatusOr<std::unique_ptr<RemoteTier>> Open(Job& job, checkpoint::Storage& near,
                                                          const std::string& place);
  RemoteTier(const RemoteTier&) = delete;
  RemoteTier& operator=(const RemoteTier&) = delete;
  // Gives up the copy that is under way: a rank that fails would else tell why behind it, when its
  // peers have long been blamed. The next attempt goes on with it.
  ~RemoteTier() { ends_ = true; }

  // Before a run resumes: gives this place the records of attempts that it lacks, and copies the
  // newest whole checkpoint of the remote place here if no whole one here is as new. One that is
  // damaged here, by `damaged` or by what its files look like, is replaced by the copy there and is
  // no longer in `damaged`; one that is damaged there is passed over. FailedPrecondition: there are
  // some, none of which is whole, and none is here; or the place holds another run.
  absl::Status BringBack(DamagedTries& damaged);
  // The checkpoint `id` is durable here.
  void Copy(const checkpoint::StepId& id);
  // The run goes on from `id`: the remote place gets the records of attempts, so that one on
  // another disk has a later number and one that is thought dead is fenced, and `id` if no attempt
  // before has copied it. Does not wait for it.
  void GoOnFrom(const checkpoint::StepId& id);
  // The checkpoints that are being copied or wait for it. Removed meanwhile they would never be
  // there, where a copy takes longer than checkpoint.keep saves. Thread-safe.
  std::set<checkpoint::StepId> InUse();
  // Waits until the newest is there too; what is copied meanwhile is the caller's work
  // (base/threads/work_count.h). An error: it is durable here alone.
  absl::Status Finish();

 private:
  RemoteTier(Job& job, checkpoint::Storage& near, std::unique_ptr<checkpoint::Storage> remote,
             checkpoint::Retention keep);
  // `is_damaged`: so it is here.
  absl::Status BringBackOne(const checkpoint::StepId& id, bool is_damaged);
  // Makes place for a checkpoint that is damaged here, if the copy there is whole.
  absl::Status MakeWay(const checkpoint::StepId& id);
  // Waits until the thread that copies has nothing to do.
  void AwaitIdle();
  void CopyWanted();
  absl::Status CopyOne(const checkpoint::StepId& id);
  // Removes old checkpoints there, and what copies that failed or were cut have left. `copied`: the
  // one that has just become whole.
  absl::Status RemoveOld(const checkpoint::StepId& copied);
  void Note(const checkpoint::StepId& id, const absl::Status& status);

  Job& job_;
  checkpoint::Storage& near_;
  const std::unique_ptr<checkpoint::Storage> remote_;  // Null: nothing is to be done.
  const checkpoint::Retention keep_;
  std::set<checkpoint::StepId> replaced_;  // What BringBack has replaced, each once.
  std::set<checkpoint::StepId> whole_;     // Copies that are; for the thread that copies.
  std::mutex mutex_;
  std::optional<checkpoint::StepId> wanted_;   // Durable here, and not tried yet.
  std::optional<checkpoint::StepId> copying_;  // Taken from there, until its copy has ended.
  absl::Status last_;                          // How the last copy ended.
  std::optional<checkpoint::StepId> failed_;   // Its checkpoint, if it failed.
  int64_t failures_ = 0;
  std::atomic<bool> ends_{false};
  WorkCount copied_;  // The work of the thread that copies.
  Worker worker_;     // Ends first.
};

}  // namespace dtrain
