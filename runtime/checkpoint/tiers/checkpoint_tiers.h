// The places of a run's checkpoints as a Checkpointer uses them.
//
//   checkpoint.dir alone         all ranks write there; checkpoint.remote, if any, is behind it
//   checkpoint.local_dir         each rank writes to its host's disk (hosts_storage.h). Behind it
//                                is checkpoint.remote, or else checkpoint.dir; while training goes
//                                on rank 0 has each host copy its part of a durable one there
//   checkpoint.replicas          and to the memory of the next host (replica_memory.h)
//
// A host is the set of ranks that see the same folder as checkpoint.local_dir. For the thread that
// trains, which makes the same calls on every rank; storage() is thread-safe.
#pragma once

#include <cstdint>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "base/deadline.h"
#include "checkpoint/exchange.h"
#include "checkpoint/restore/reader.h"
#include "checkpoint/storage/storage.h"
#include "dtrain/job.h"
#include "runtime/checkpoint/remote_tier.h"
#include "runtime/checkpoint/tiers/file_server.h"
#include "runtime/checkpoint/tiers/hosts_storage.h"
#include "runtime/checkpoint/tiers/peer_storage.h"
#include "runtime/checkpoint/tiers/replica_memory.h"

namespace dtrain {

class CheckpointTiers {
 public:
  // Collective. An error says which place cannot be used. REQUIRES: both outlive the result.
  static absl::StatusOr<std::unique_ptr<CheckpointTiers>> Open(Job& job,
                                                               checkpoint::Exchange& exchange);
  CheckpointTiers(const CheckpointTiers&) = delete;
  CheckpointTiers& operator=(const CheckpointTiers&) = delete;
  // Ends a copy that is under way, which could wait long for hosts that are lost.
  ~CheckpointTiers();

  // Where checkpoints are saved, and the step journal.
  checkpoint::Storage& storage() { return saves_ != nullptr ? *saves_ : *disk_; }
  // The name of this rank's host, where its files are; "": all ranks write to one place.
  const std::string& host() const { return host_; }

  // InvalidArgument: a checkpoint of `bytes` bytes has replicas for which this host has no room.
  // Collective with a journal, whose replicas share what is left of the room.
  absl::Status CheckRoom(uint64_t bytes);
  // Collective: checkpoint::BeginAttempt, over all places.
  absl::StatusOr<checkpoint::Attempt> Begin(checkpoint::AttemptOptions options);
  // The run goes on from a checkpoint, which may not be in the place behind: it must not depend on
  // the disks and hosts that are left.
  void CopyRestored(const checkpoint::StepId& id);
  // A checkpoint is durable in storage().
  void Copy(const checkpoint::StepId& id) { remote_->Copy(id); }
  // The checkpoints that are being copied, or will be. Thread-safe.
  std::set<checkpoint::StepId> InUse() { return remote_->InUse(); }
  // Waits until the newest checkpoint is in the tier behind too. An error: it is not there. Only
  // where the job is `stopping` and has no local tier do the others not wait for rank 0: it reads
  // nothing of theirs, and their hosts may have little time left. At the end of a run the launcher
  // would take the rank that goes on for one that is stuck.
  absl::Status Finish(bool stopping);

 private:
  struct Hosts;  // Who is on which host.

  CheckpointTiers(Job& job, checkpoint::Exchange& exchange) : job_(job), exchange_(exchange) {}
  absl::Status OpenShared();
  absl::Status OpenLocal();
  absl::StatusOr<Hosts> FindHosts();
  absl::StatusOr<std::string> StartServer(const Hosts& hosts);
  absl::Status ConnectHosts(const Hosts& hosts);
  HostsStorage::Options StorageOptions(const Hosts& hosts);
  void ReportLackingReplica(const checkpoint::StepId& id, const std::string& why);
  void ReportJournalAlone(const std::string& file, const std::string& why);
  // The room that this host's memory has for the snapshots that it keeps, of a checkpoint of
  // `bytes`.
  ReplicaRoom RoomForKept(uint64_t bytes);
  // Collective: how `copy` ends on rank 0, which alone calls it. It may take longer than a call of
  // the group (Exchange::Together).
  absl::Status CopyOnRank0(absl::FunctionRef<absl::Status()> copy);
  absl::Duration CallTime() const;
  Deadline CallDeadline() const { return Deadline::After(CallTime()); }

  Job& job_;
  checkpoint::Exchange& exchange_;
  std::unique_ptr<checkpoint::Storage> disk_;    // checkpoint.dir, or this host's disk.
  std::unique_ptr<checkpoint::Storage> behind_;  // The members from here on: with a local tier.
  std::unique_ptr<ReplicaMemory> memory_;        // Null without replicas.
  std::string host_;
  bool leads_host_ = false;             // This rank is the first one of its host.
  int ranks_of_host_ = 1;               // Ranks of this host,
  int ranks_of_kept_ = 0;               // and of the one whose replicas this one keeps.
  int keeper_ = 0;                      // The first rank of the host that keeps this one's.
  std::unique_ptr<FileServer> server_;  // The first rank of each host has one.
  std::vector<std::shared_ptr<PeerLines>> lines_;
  std::vector<std::unique_ptr<PeerStorage>> peers_;
  std::vector<HostsStorage::Place> disks_;
  std::vector<HostsStorage::Place> memories_;
  std::unique_ptr<HostsStorage> saves_;   // For saves.
  std::unique_ptr<HostsStorage> source_;  // For a run that resumes.
  int64_t lacking_replicas_ = 0;
  int64_t journals_alone_ = 0;          // Counted by the thread that writes the journal.
  std::unique_ptr<RemoteTier> remote_;  // Ends first, since it copies from the others.
};

}  // namespace dtrain
