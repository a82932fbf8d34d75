#include "runtime/checkpoint/remote_tier.h"

#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/status.h"
#include "base/threads/bounded_queue.h"
#include "checkpoint/commit/copy_checkpoint.h"
#include "checkpoint/restore/lineage.h"
#include "checkpoint/restore/verify.h"
#include "checkpoint/storage/posix_storage.h"
#include "checkpoint/storage/s3/s3_storage.h"
#include "runtime/checkpoint/save_policy.h"

namespace dtrain {
namespace {

using checkpoint::StepId;
using checkpoint::Storage;

// The checkpoint from which a run would resume there, by its manifest alone; none: there is none.
absl::StatusOr<std::optional<StepId>> Newest(Storage& storage) {
  DT_ASSIGN_OR_RETURN(const checkpoint::EpochMap epochs, checkpoint::ReadEpochs(storage));
  DT_ASSIGN_OR_RETURN(std::vector<StepId> commits, checkpoint::ListCheckpoints(storage));
  const std::vector<StepId> line =
      checkpoint::OnLineage(checkpoint::Lineage(epochs), std::move(commits));
  return line.empty() ? std::nullopt : std::optional(line.front());
}

void Ignore(const checkpoint::ManifestFile& /*file*/, bool /*was_there*/) {}

}  // namespace

absl::StatusOr<std::unique_ptr<Storage>> OpenPlace(const std::string& place) {
  return checkpoint::IsS3Url(place) ? checkpoint::OpenS3Storage(place, {})
                                    : checkpoint::OpenPosixStorage(place);
}

absl::StatusOr<std::unique_ptr<RemoteTier>> RemoteTier::Open(Job& job, Storage& near,
                                                             const std::string& place) {
  std::unique_ptr<Storage> remote;
  if (!place.empty() && job.rank() == 0) {
    auto opened = OpenPlace(place);
    DT_RETURN_IF_ERROR(Annotate(opened.status(), "checkpoint.remote"));
    remote = *std::move(opened);
  }
  if (remote != nullptr && remote->DisplayName("") == near.DisplayName("")) {
    return absl::InvalidArgumentError(absl::StrCat(
        "checkpoint.remote is ", place,
        ", the folder of the checkpoints themselves; name another place, or leave it empty"));
  }
  return std::unique_ptr<RemoteTier>(
      new RemoteTier(job, near, std::move(remote), KeptCheckpoints(job.config())));
}

RemoteTier::RemoteTier(Job& job, Storage& near, std::unique_ptr<Storage> remote,
                       checkpoint::Retention keep)
    : job_(job),
      near_(near),
      remote_(std::move(remote)),
      keep_(std::move(keep)),
      worker_({.name = "dtrain-remote", .queue_capacity = 4, .low_priority = true}) {}

absl::Status RemoteTier::BringBack() {
  if (remote_ == nullptr) {
    return absl::OkStatus();
  }
  DT_ASSIGN_OR_RETURN(const std::optional<StepId> there, Newest(*remote_));
  DT_ASSIGN_OR_RETURN(const std::optional<StepId> here, Newest(near_));
  if (!there.has_value() || (here.has_value() && *here >= *there)) {
    return absl::OkStatus();
  }
  DT_LOG(Info) << "bringing the checkpoint of " << there->ToString() << " back from "
               << remote_->DisplayName("");
  return Annotate(checkpoint::CopyCheckpoint(*remote_, *there, near_, Ignore).status(),
                  absl::StrCat("bringing back the checkpoint of ", there->ToString()));
}

void RemoteTier::Copy(const StepId& id) {
  if (remote_ == nullptr) {
    return;
  }
  {
    const std::lock_guard lock(mutex_);
    if (std::exchange(wanted_, id).has_value()) {
      return;  // The task that is queued takes this one.
    }
  }
  worker_.Submit([this] { CopyWanted(); });
}

std::set<StepId> RemoteTier::InUse() {
  const std::lock_guard lock(mutex_);
  std::set<StepId> in_use;
  for (const std::optional<StepId>& id : {wanted_, copying_}) {
    if (id.has_value()) {
      in_use.insert(*id);
    }
  }
  return in_use;
}

void RemoteTier::CopyWanted() {
  std::optional<StepId> id;
  {
    const std::lock_guard lock(mutex_);
    id = copying_ = std::exchange(wanted_, std::nullopt);
  }
  if (id.has_value()) {
    Note(*id, CopyOne(*id));
  }
}

absl::Status RemoteTier::CopyOne(const StepId& id) {
  const int64_t begin = Clock::Real().MonotonicNanos();
  DT_ASSIGN_OR_RETURN(const checkpoint::CopyResult copied,
                      checkpoint::CopyCheckpoint(near_, id, *remote_, Ignore));
  const double seconds = static_cast<double>(Clock::Real().MonotonicNanos() - begin) * 1e-9;
  job_.metrics().LogEvent(
      EventKind::kEvent, id.step,
      {{"name", "remote_copy"},
       {"path", remote_->DisplayName(id.DirectoryName())},
       {"files_by_hosts", copied.files_sent},  // The rest went through this rank.
       {"m", {{"ckpt/remote_bytes", copied.bytes}, {"ckpt/remote_seconds", seconds}}}});
  if (const absl::Status removed = RemoveOld(id.epoch); !removed.ok()) {
    DT_LOG(Warning) << "cannot remove old checkpoints of " << remote_->DisplayName("") << ": "
                    << removed.message();
  }
  return absl::OkStatus();
}

absl::Status RemoteTier::RemoveOld(int64_t epoch) {
  DT_ASSIGN_OR_RETURN(const checkpoint::EpochMap epochs, checkpoint::ReadEpochs(*remote_));
  DT_ASSIGN_OR_RETURN(const std::vector<StepId> commits, checkpoint::ListCheckpoints(*remote_));
  const checkpoint::RetentionInput input{
      .lineage = checkpoint::Lineage(epochs),
      .commits = commits,
      .keep = keep_,
      .resumed_from = std::nullopt,
      .own_epoch = epoch,
      .metrics = checkpoint::ReadMetrics(*remote_, keep_, commits)};
  // Each was compared with its checksums while it was copied.
  const std::vector<StepId> old =
      checkpoint::CommitsToRemove(input, [](const StepId& /*id*/) { return true; });
  absl::Status first;
  for (const StepId& id : old) {
    first.Update(checkpoint::RemoveCommit(*remote_, id));
  }
  return first;
}

void RemoteTier::Note(const StepId& id, const absl::Status& status) {
  bool is_first = false;
  {
    const std::lock_guard lock(mutex_);
    is_first = !status.ok() && last_.ok();
    last_ = status;
    copying_.reset();
    failed_ = status.ok() ? std::nullopt : std::optional(id);
    failures_ += status.ok() ? 0 : 1;
  }
  if (!status.ok()) {
    job_.metrics().LogEvent(EventKind::kEvent, id.step,
                            {{"name", "remote_failed"},
                             {"error", std::string(status.message())},
                             {"m", {{"ckpt/remote_failed", failures_}}}});
  }
  if (is_first) {  // One line an outage.
    DT_LOG(Warning) << "the checkpoint of " << id.ToString()
                    << " is durable here alone: " << status.message()
                    << ". The next one will be copied again";
  }
}

absl::Status RemoteTier::Finish() {
  std::optional<StepId> again;
  const auto idle = [this] {
    const auto ended = std::make_shared<BoundedQueue<bool>>(1);
    worker_.Submit([ended] { ended->TryPush(true); });
    ended->Pop(Deadline::Infinite());
  };
  idle();
  {
    const std::lock_guard lock(mutex_);
    again = failed_;
  }
  if (again.has_value()) {
    Copy(*again);
    idle();
  }
  const std::lock_guard lock(mutex_);
  return failed_.has_value()
             ? absl::UnavailableError(absl::StrCat("the checkpoint of ", failed_->ToString(),
                                                   " is durable here, but not in ",
                                                   remote_->DisplayName(""), ": ", last_.message()))
             : absl::OkStatus();
}

}  // namespace dtrain
