#include "runtime/checkpoint/remote_tier.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "base/device_error.h"
#include "base/log.h"
#include "base/status.h"
#include "base/threads/bounded_queue.h"
#include "checkpoint/commit/copy_checkpoint.h"
#include "checkpoint/commit/epoch.h"
#include "checkpoint/format/manifest.h"
#include "checkpoint/restore/lineage.h"
#include "checkpoint/restore/verify.h"
#include "checkpoint/storage/posix_storage.h"
#include "checkpoint/storage/s3/s3_storage.h"
#include "runtime/checkpoint/save_policy.h"
#include "runtime/job/heartbeat.h"
#include "runtime/job/job_state.h"

namespace dtrain {
namespace {

// How often who waits for a copy looks whether it gets on.
constexpr absl::Duration kLookAtCopy = absl::Milliseconds(100);

using checkpoint::StepId;
using checkpoint::Storage;

// The checkpoints of a storage that are on a line, best first, by their manifests alone.
absl::StatusOr<std::vector<StepId>> OnLine(Storage& storage,
                                           const std::vector<checkpoint::LineageSegment>& line) {
  DT_ASSIGN_OR_RETURN(std::vector<StepId> commits, checkpoint::ListCheckpoints(storage));
  return checkpoint::OnLineage(line, std::move(commits));
}

// Whether a checkpoint is known to be damaged, or looks so by its manifest and the sizes of its
// files. An error that may pass says nothing.
bool IsDamaged(Storage& storage, const StepId& id, const DamagedTries& damaged) {
  return damaged.contains(id) ||
         absl::IsInvalidArgument(
             checkpoint::Checkpoint::Open(storage, id, checkpoint::Verify::kSizes).status());
}

// Gives `to`, which has the records `known`, those that it lacks, so that the next attempt there
// has a number that none has had. FailedPrecondition: the places hold different runs, and nothing
// is written.
absl::Status GiveEpochs(const checkpoint::EpochMap& records, const checkpoint::EpochMap& known,
                        Storage& to) {
  for (const auto& [number, record] : records) {
    const auto at = known.find(number);
    if (at != known.end() && at->second.has_value() && record.has_value() &&
        checkpoint::EncodeEpoch(*at->second) != checkpoint::EncodeEpoch(*record)) {
      return absl::FailedPreconditionError(absl::StrCat(
          to.DisplayName(checkpoint::EpochPath(number)),
          " is not the attempt that the other place of checkpoints has of this number, so that the "
          "two places hold different runs: name another place as checkpoint.remote"));
    }
  }
  for (const auto& [number, record] : records) {
    if (known.contains(number) || !record.has_value()) {
      continue;
    }
    DT_RETURN_IF_ERROR(to.MakeDirectory("epochs"));
    const absl::Status given =
        to.Publish(checkpoint::EpochPath(number), checkpoint::EncodeEpoch(*record));
    if (!given.ok() && !absl::IsAlreadyExists(given)) {
      return given;
    }
  }
  return absl::OkStatus();
}

// Whether the checkpoint before the one that could not be brought back is tried: the copy is
// damaged, or the one here is, and what keeps it from being replaced will not pass.
bool IsPassedOver(const absl::Status& brought, bool is_damaged) {
  const bool may_pass = (absl::IsUnavailable(brought) && !IsDeviceError(brought)) ||
                        absl::IsDeadlineExceeded(brought);
  return absl::IsInvalidArgument(brought) || (is_damaged && !may_pass);
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
  if (remote != nullptr) {  // A full disk or an outage may pass, and is an alarm of the copies.
    // With a local tier and no second place, this is the shared folder.
    const char* const key =
        job.config().checkpoint_remote().empty() ? "checkpoint.dir" : "checkpoint.remote";
    const absl::Status probed = remote->Probe().status();
    DT_RETURN_IF_ERROR(absl::IsPermissionDenied(probed)
                           ? Annotate(probed, absl::StrCat(key, " cannot be written"))
                           : absl::OkStatus());
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

absl::Status RemoteTier::BringBack(DamagedTries& damaged) {
  if (remote_ == nullptr) {
    return absl::OkStatus();
  }
  DT_ASSIGN_OR_RETURN(const checkpoint::EpochMap there, checkpoint::ReadEpochs(*remote_));
  DT_ASSIGN_OR_RETURN(const checkpoint::EpochMap here, checkpoint::ReadEpochs(near_));
  checkpoint::EpochMap both = here;
  both.insert(there.begin(), there.end());
  // An attempt may have gone on from an older one than the newest there, which then is off the
  // line.
  const std::vector<checkpoint::LineageSegment> line = checkpoint::Lineage(both);
  DT_ASSIGN_OR_RETURN(const std::vector<StepId> copies, OnLine(*remote_, line));
  DT_ASSIGN_OR_RETURN(const std::vector<StepId> own, OnLine(near_, line));
  const auto whole = std::find_if(own.begin(), own.end(),
                                  [&](const StepId& id) { return !IsDamaged(near_, id, damaged); });
  const bool is_newest = whole != own.end() && (copies.empty() || *whole >= copies.front());
  // The search goes by the records here, which also show that the run has had checkpoints.
  const absl::Status given = GiveEpochs(there, here, near_);
  if (is_newest) {  // If the place is another run's, each copy to it fails and says so.
    return absl::IsFailedPrecondition(given) ? absl::OkStatus() : given;
  }
  DT_RETURN_IF_ERROR(
      Annotate(given, absl::StrCat("bringing checkpoints back from ", remote_->DisplayName(""))));
  absl::Status newest;  // Why the newest copy that was tried is not used.
  for (const StepId& id : copies) {
    if (whole != own.end() && *whole >= id) {
      return absl::OkStatus();
    }
    const bool is_damaged = IsDamaged(near_, id, damaged);
    const absl::Status brought = BringBackOne(id, is_damaged);
    if (brought.ok()) {
      damaged.erase(id);
      return absl::OkStatus();
    }
    if (!IsPassedOver(brought, is_damaged)) {
      return Annotate(brought, absl::StrCat("bringing back the checkpoint of ", id.ToString()));
    }
    checkpoint::LogNotUsed(id, brought);
    newest.Update(brought);
  }
  if (newest.ok() || !own.empty()) {  // The search tells of those here.
    return absl::OkStatus();
  }
  return absl::FailedPreconditionError(
      absl::StrCat(near_.DisplayName(""), " holds no checkpoint to resume from, and of those in ",
                   remote_->DisplayName(""), " none is whole; the newest: ", newest.message(),
                   ". Bring a whole one back, or start at step 0 with --fresh"));
}

absl::Status RemoteTier::BringBackOne(const StepId& id, bool is_damaged) {
  DT_RETURN_IF_ERROR(is_damaged ? MakeWay(id) : absl::OkStatus());
  DT_LOG(Info) << "bringing the checkpoint of " << id.ToString() << " back from "
               << remote_->DisplayName("");
  return checkpoint::CopyCheckpoint(*remote_, id, near_, Ignore).status();
}

absl::Status RemoteTier::MakeWay(const StepId& id) {
  const std::string here = near_.DisplayName(id.DirectoryName());
  if (!replaced_.insert(id).second) {  // Else a disk that damages what it is given holds a run up.
    return absl::InvalidArgumentError(
        absl::StrCat(here, " was damaged, was replaced and is damaged again"));
  }
  DT_ASSIGN_OR_RETURN(const checkpoint::Manifest copy, checkpoint::ReadManifest(*remote_, id));
  DT_RETURN_IF_ERROR(checkpoint::VerifyFiles(*remote_, copy, checkpoint::Verify::kHashes));
  DT_LOG(Warning) << here << " is damaged; what is damaged of it is replaced by the copy in "
                  << remote_->DisplayName("");
  // Without its manifest it is no checkpoint, whatever happens until the copy is whole.
  DT_RETURN_IF_ERROR(
      near_.RemoveFile(absl::StrCat(id.DirectoryName(), "/", checkpoint::kManifestName)));
  return near_.SyncDirectory(id.DirectoryName());
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

void RemoteTier::GoOnFrom(const StepId& id) {
  if (remote_ == nullptr) {
    return;
  }
  worker_.Submit([this, id] {  // The place may be slow, or not answer.
    const WorkCount::Scope counts(&copied_);
    if (ends_) {
      return;
    }
    const auto give = [this]() -> absl::Status {
      DT_ASSIGN_OR_RETURN(const checkpoint::EpochMap here, checkpoint::ReadEpochs(near_));
      DT_ASSIGN_OR_RETURN(const checkpoint::EpochMap there, checkpoint::ReadEpochs(*remote_));
      return GiveEpochs(here, there, *remote_);
    };
    if (const absl::Status given = give(); !given.ok()) {  // The next copy gives its own record.
      DT_LOG(Warning) << remote_->DisplayName("")
                      << " does not know of this attempt yet: " << given.message();
    }
    // While this attempt runs, the checkpoint is not removed here.
    const std::string manifest = absl::StrCat(id.DirectoryName(), "/", checkpoint::kManifestName);
    if (absl::IsNotFound(remote_->OpenFile(manifest).status())) {
      Note(id, CopyOne(id));
    }
  });
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
  if (id.has_value() && !ends_) {
    Note(*id, CopyOne(*id));
  }
}

absl::Status RemoteTier::CopyOne(const StepId& id) {
  const WorkCount::Scope counts(&copied_);
  const int64_t begin = Clock::Real().MonotonicNanos();
  DT_ASSIGN_OR_RETURN(const checkpoint::CopyResult copied,
                      checkpoint::CopyCheckpoint(near_, id, *remote_, Ignore, &ends_));
  const double seconds = static_cast<double>(Clock::Real().MonotonicNanos() - begin) * 1e-9;
  whole_.insert(id);  // It was compared with its checksums on the way.
  job_.metrics().LogEvent(
      EventKind::kEvent, id.step,
      {{"name", "remote_copy"},
       {"path", remote_->DisplayName(id.DirectoryName())},
       {"files_by_hosts", copied.files_sent},  // The rest went through this rank.
       {"m", {{"ckpt/remote_bytes", copied.bytes}, {"ckpt/remote_seconds", seconds}}}});
  if (const absl::Status removed = RemoveOld(id); !removed.ok()) {
    DT_LOG(Warning) << "cannot remove old checkpoints of " << remote_->DisplayName("") << ": "
                    << removed.message();
  }
  return absl::OkStatus();
}

absl::Status RemoteTier::RemoveOld(const StepId& copied) {
  DT_ASSIGN_OR_RETURN(const checkpoint::EpochMap epochs, checkpoint::ReadEpochs(*remote_));
  DT_ASSIGN_OR_RETURN(const std::vector<StepId> commits, checkpoint::ListCheckpoints(*remote_));
  const checkpoint::RetentionInput input{
      .lineage = checkpoint::Lineage(epochs),
      .commits = commits,
      .keep = keep_,
      .resumed_from = std::nullopt,
      .own_epoch = copied.epoch,
      .metrics = checkpoint::ReadMetrics(*remote_, keep_, commits)};
  // One of an attempt before may have lost a file since.
  const auto is_whole = [this](const StepId& id) {
    if (!whole_.contains(id) &&
        checkpoint::Checkpoint::Open(*remote_, id, checkpoint::Verify::kSizes).ok()) {
      whole_.insert(id);
    }
    return whole_.contains(id);
  };
  absl::Status first;
  for (const StepId& id : checkpoint::CommitsToRemove(input, is_whole)) {
    first.Update(checkpoint::RemoveCommit(*remote_, id));
    whole_.erase(id);
  }
  // A newer attempt may be copying by now, also a checkpoint that this one has saved.
  if (epochs.empty() || epochs.rbegin()->first <= copied.epoch) {
    first.Update(checkpoint::RemoveLeftovers(*remote_, copied, std::nullopt, commits));
  }
  return first;
}

void RemoteTier::Note(const StepId& id, const absl::Status& status) {
  if (ends_) {
    return;  // It was given up.
  }
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

void RemoteTier::AwaitIdle() {
  const auto ended = std::make_shared<BoundedQueue<bool>>(1);
  worker_.Submit([ended] { ended->TryPush(true); });
  uint64_t seen = copied_.done();
  bool gets_on = true;
  while (true) {
    // At a stop the other ranks do not wait for this one: its phases alone show the agent progress.
    const InnerPhase copies(gets_on ? job_.state().heartbeat.get() : nullptr, "save");
    if (ended->Pop(Deadline::After(kLookAtCopy)).has_value()) {
      return;
    }
    gets_on = copied_.GetsOn(seen);
    if (gets_on) {
      WorkCount::Note();
    }
  }
}

absl::Status RemoteTier::Finish() {
  std::optional<StepId> again;
  AwaitIdle();
  {
    const std::lock_guard lock(mutex_);
    again = failed_;
  }
  if (again.has_value()) {
    Copy(*again);
    AwaitIdle();
  }
  const std::lock_guard lock(mutex_);
  return failed_.has_value()
             ? absl::UnavailableError(absl::StrCat("the checkpoint of ", failed_->ToString(),
                                                   " is durable here, but not in ",
                                                   remote_->DisplayName(""), ": ", last_.message()))
             : absl::OkStatus();
}

}  // namespace dtrain
