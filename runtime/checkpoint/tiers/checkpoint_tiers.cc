#include "runtime/checkpoint/tiers/checkpoint_tiers.h"

#include <sys/stat.h>
#include <sys/utsname.h>

#include <algorithm>
#include <cerrno>
#include <optional>
#include <tuple>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/time/time.h"
#include "base/file.h"
#include "base/json.h"
#include "base/log.h"
#include "base/status.h"
#include "checkpoint/restore/verify.h"
#include "checkpoint/storage/posix_storage.h"
#include "comm/side_lines.h"
#include "runtime/checkpoint/storage_room.h"
#include "runtime/job/heartbeat.h"
#include "runtime/job/job_state.h"

namespace dtrain {
namespace {

constexpr absl::Duration kStaleReplicaAge = absl::Hours(24);
// Rank 0's message; any other text says why its copy failed.
constexpr char kCopied[] = "copied";

std::string SharedFolder(const Job& job) {
  const std::string& configured = job.config().checkpoint_dir();
  return configured.empty() ? job.run_dir() + "/checkpoints" : configured;
}

// Identifies the folder on every rank that sees it, by kernel, device and inode.
absl::StatusOr<std::string> FolderIdentity(const std::string& folder) {
  struct stat about {};
  if (stat(folder.c_str(), &about) != 0) {
    return ErrnoStatus(errno, folder);
  }
  const auto boot = ReadFile("/proc/sys/kernel/random/boot_id", 256);
  return absl::StrCat(boot.value_or(""), "/", about.st_dev, "/", about.st_ino);
}

std::string NameOfHost() {
  utsname names{};
  return uname(&names) == 0 ? names.nodename : "localhost";
}

// Collective: every rank's object, by rank. A rank that gives {"error": text} ends the call on all.
absl::StatusOr<std::vector<Json>> ShareAmongRanks(checkpoint::Exchange& exchange, const Json& mine,
                                                  Deadline deadline) {
  DT_ASSIGN_OR_RETURN(const std::vector<std::string> texts,
                      exchange.Gather(DumpJson(mine), deadline));
  Json all = Json::array();
  for (const std::string& text : texts) {  // On rank 0 alone.
    DT_ASSIGN_OR_RETURN(Json one, ParseJson(text, "a rank's place of checkpoints"));
    all.push_back(std::move(one));
  }
  DT_ASSIGN_OR_RETURN(const std::string text, exchange.Broadcast(DumpJson(all), deadline));
  DT_ASSIGN_OR_RETURN(const Json shared, ParseJson(text, "the ranks' places of checkpoints"));
  std::vector<Json> cards(shared.begin(), shared.end());
  for (size_t rank = 0; rank < cards.size(); ++rank) {
    if (cards[rank].contains("error")) {
      return absl::AbortedError(absl::StrCat(
          "rank ", rank, " cannot use its place of checkpoints: ", cards[rank].value("error", "")));
    }
  }
  return cards;
}

Json ErrorCard(const absl::Status& status) {
  Json card = Json::object();
  card["error"] = std::string(status.message());
  return card;
}

}  // namespace

struct CheckpointTiers::Hosts {
  std::vector<int> leaders;  // The first rank of each host.
  std::vector<std::string> names;
  std::vector<int> ranks;  // Number of its ranks.
  size_t mine = 0;

  size_t count() const { return leaders.size(); }
};

absl::StatusOr<std::unique_ptr<CheckpointTiers>> CheckpointTiers::Open(
    Job& job, checkpoint::Exchange& exchange) {
  std::unique_ptr<CheckpointTiers> tiers(new CheckpointTiers(job, exchange));
  DT_RETURN_IF_ERROR(job.config().checkpoint_local_dir().empty() ? tiers->OpenShared()
                                                                 : tiers->OpenLocal());
  return tiers;
}

CheckpointTiers::~CheckpointTiers() {
  for (const std::shared_ptr<PeerLines>& lines : lines_) {
    lines->Close();
  }
}

absl::Duration CheckpointTiers::CallTime() const {
  return absl::Seconds(job_.config().comm_timeout_seconds());
}

absl::Status CheckpointTiers::OpenShared() {
  auto storage = checkpoint::OpenPosixStorage(SharedFolder(job_));
  DT_RETURN_IF_ERROR(job_.config().checkpoint_dir().empty()
                         ? storage.status()
                         : Annotate(storage.status(), "checkpoint.dir"));
  disk_ = *std::move(storage);
  DT_RETURN_IF_ERROR(job_.local_rank() == 0 ? ProbeStorage(*disk_) : absl::OkStatus());
  DT_ASSIGN_OR_RETURN(remote_, RemoteTier::Open(job_, *disk_, job_.config().checkpoint_remote()));
  return absl::OkStatus();
}

absl::Status CheckpointTiers::OpenLocal() {
  DT_ASSIGN_OR_RETURN(const Hosts hosts, FindHosts());
  DT_RETURN_IF_ERROR(leads_host_ ? ProbeStorage(*disk_) : absl::OkStatus());
  const std::string& remote = job_.config().checkpoint_remote();
  const std::string place = remote.empty() ? SharedFolder(job_) : remote;
  auto behind = OpenPlace(place);
  DT_RETURN_IF_ERROR(
      Annotate(behind.status(), remote.empty() ? "checkpoint.dir" : "checkpoint.remote"));
  behind_ = *std::move(behind);
  DT_RETURN_IF_ERROR(ConnectHosts(hosts));
  HostsStorage::Options options = StorageOptions(hosts);
  saves_ = std::make_unique<HostsStorage>(options);
  options.reads_behind = true;
  source_ = std::make_unique<HostsStorage>(std::move(options));
  DT_ASSIGN_OR_RETURN(remote_, RemoteTier::Open(job_, *saves_, place));
  return absl::OkStatus();
}

// Opens this rank's disk and memory, and learns which ranks have the same.
absl::StatusOr<CheckpointTiers::Hosts> CheckpointTiers::FindHosts() {
  const Config& config = job_.config();
  // Runs that share a disk each have a folder of their own there.
  const std::string folder = absl::StrCat(config.checkpoint_local_dir(), "/",
                                          absl::StrReplaceAll(job_.run_id(), {{"/", "_"}}));
  host_ = NameOfHost();
  const auto open = [&]() -> absl::StatusOr<std::string> {
    auto disk = checkpoint::OpenPosixStorage(folder);
    DT_RETURN_IF_ERROR(Annotate(disk.status(), "checkpoint.local_dir"));
    disk_ = *std::move(disk);
    if (config.checkpoint_replicas() > 0) {
      DT_ASSIGN_OR_RETURN(memory_,
                          ReplicaMemory::Open(config.checkpoint_replica_dir(), job_.run_id()));
    }
    return FolderIdentity(folder);
  };
  const absl::StatusOr<std::string> identity = open();
  const auto cards = ShareAmongRanks(
      exchange_,
      identity.ok() ? Json{{"disk", *identity}, {"host", host_}} : ErrorCard(identity.status()),
      CallDeadline());
  DT_RETURN_IF_ERROR(identity.status());
  DT_RETURN_IF_ERROR(cards.status());
  Hosts hosts;
  std::vector<std::string> disks;
  for (size_t rank = 0; rank < cards->size(); ++rank) {
    const std::string disk = (*cards)[rank].value("disk", "");
    const auto at =
        static_cast<size_t>(std::find(disks.begin(), disks.end(), disk) - disks.begin());
    if (at == disks.size()) {
      disks.push_back(disk);
      hosts.leaders.push_back(static_cast<int>(rank));
      hosts.names.push_back((*cards)[rank].value("host", ""));
      hosts.ranks.push_back(0);
    }
    ++hosts.ranks[at];
    hosts.mine = disk == *identity ? at : hosts.mine;
  }
  leads_host_ = hosts.leaders[hosts.mine] == job_.rank();
  ranks_of_host_ = hosts.ranks[hosts.mine];
  ranks_of_kept_ = hosts.ranks[(hosts.mine + hosts.count() - 1) % hosts.count()];
  keeper_ = hosts.leaders[(hosts.mine + 1) % hosts.count()];
  if (leads_host_ && memory_ != nullptr) {
    RemoveStaleReplicas(config.checkpoint_replica_dir(), memory_->folder(), kStaleReplicaAge);
  }
  return hosts;
}

// Gives the address at which the other hosts find this one's files; "" on ranks without a server.
absl::StatusOr<std::string> CheckpointTiers::StartServer(const Hosts& hosts) {
  if (!leads_host_ || hosts.count() == 1) {
    return std::string();
  }
  DT_ASSIGN_OR_RETURN(const comm::SideLines lines,
                      comm::SideLines::Of(job_.group(), *job_.state().store));
  DT_ASSIGN_OR_RETURN(auto listener, lines.Listen());
  FileServer::Options options;
  options.disk = disk_.get();
  options.memory = memory_ == nullptr ? nullptr : &memory_->storage();
  options.behind = behind_.get();
  options.timeout = absl::Seconds(job_.config().comm_timeout_seconds());
  server_ = std::make_unique<FileServer>(std::move(listener), options);
  return server_->endpoint().ToString();
}

absl::Status CheckpointTiers::ConnectHosts(const Hosts& hosts) {
  const absl::StatusOr<std::string> served = StartServer(hosts);
  const auto cards =
      ShareAmongRanks(exchange_,
                      served.ok() ? Json{{"where", *served},
                                         {"disk", disk_->DisplayName("")},
                                         {"memory", memory_ == nullptr ? "" : memory_->folder()}}
                                  : ErrorCard(served.status()),
                      CallDeadline());
  DT_RETURN_IF_ERROR(served.status());
  DT_RETURN_IF_ERROR(cards.status());
  if (hosts.count() == 1 && memory_ != nullptr && job_.rank() == 0) {
    DT_LOG(Warning) << "checkpoint.replicas is " << job_.config().checkpoint_replicas()
                    << ", but all ranks are on one host, so that no other host can keep a replica";
  }
  for (size_t host = 0; host < hosts.count(); ++host) {
    if (host == hosts.mine) {
      disks_.push_back({disk_.get(), nullptr});
      memories_.push_back({memory_ == nullptr ? nullptr : &memory_->storage(), nullptr});
      continue;
    }
    const Json& card = (*cards)[static_cast<size_t>(hosts.leaders[host])];
    DT_ASSIGN_OR_RETURN(const comm::SideLines lines,
                        comm::SideLines::Of(job_.group(), *job_.state().store));
    DT_ASSIGN_OR_RETURN(const comm::Endpoint where, comm::ParseEndpoint(card.value("where", "")));
    const auto to_peer = std::make_shared<PeerLines>(
        lines,
        PeerLines::Peer{.rank = hosts.leaders[host], .where = where, .host = hosts.names[host]},
        absl::Seconds(job_.config().comm_timeout_seconds()));
    lines_.push_back(to_peer);
    for (const auto& [place, root, places] :
         {std::tuple(FilePlace::kDisk, "disk", &disks_),
          std::tuple(FilePlace::kMemory, "memory", &memories_)}) {
      peers_.push_back(std::make_unique<PeerStorage>(to_peer, place, card.value(root, "")));
      places->push_back({peers_.back().get(), peers_.back().get()});
    }
  }
  return absl::OkStatus();
}

HostsStorage::Options CheckpointTiers::StorageOptions(const Hosts& hosts) {
  HostsStorage::Options options;
  options.disks = disks_;
  if (memory_ != nullptr && hosts.count() > 1) {
    options.memories = memories_;
  }
  options.behind = behind_.get();
  options.host = hosts.mine;
  options.is_rank0 = job_.rank() == 0;
  options.on_lacking_replica = [this](const checkpoint::StepId& id, const std::string& why) {
    ReportLackingReplica(id, why);
  };
  options.on_journal_alone = [this](const std::string& file, const std::string& why) {
    ReportJournalAlone(file, why);
  };
  return options;
}

void CheckpointTiers::ReportLackingReplica(const checkpoint::StepId& id, const std::string& why) {
  job_.metrics().LogEvent(EventKind::kEvent, id.step,
                          {{"name", "replicas_lacking"},
                           {"error", why},
                           {"m", {{"ckpt/replicas_lacking", ++lacking_replicas_}}}});
  DT_LOG(Warning) << "the checkpoint of " << id.ToString()
                  << " is durable, but would not survive the loss of a host: " << why
                  << "; older replicas stay";
}

void CheckpointTiers::ReportJournalAlone(const std::string& file, const std::string& why) {
  job_.metrics().LogEvent(
      EventKind::kEvent,
      {{"name", "journal_alone"}, {"error", why}, {"m", {{"journal/alone", ++journals_alone_}}}});
  DT_LOG(Warning) << file << " has no replica from here on: " << why
                  << ". Its later steps would not survive the loss of this host; the next "
                     "checkpoint's segment tries again";
}

ReplicaRoom CheckpointTiers::RoomForKept(uint64_t bytes) {
  const Config& config = job_.config();
  ReplicaRoom room;
  room.snapshot_bytes =
      bytes * static_cast<uint64_t>(ranks_of_kept_) / static_cast<uint64_t>(job_.world_size());
  room.room_bytes = memory_->RoomBytes();
  room.allowed_bytes = static_cast<uint64_t>(config.checkpoint_replica_memory());
  room.staging_bytes = config.checkpoint_async()
                           ? static_cast<uint64_t>(config.checkpoint_staging_memory()) *
                                 static_cast<uint64_t>(job_.state().env.ranks_on_node())
                           : 0;
  room.folder = absl::StrCat(host_, ":", memory_->folder());
  return room;
}

absl::Status CheckpointTiers::CheckRoom(uint64_t bytes) {
  if (memory_ == nullptr || disks_.size() < 2) {
    return absl::OkStatus();
  }
  absl::Status fits;
  uint64_t for_journal = 0;
  if (leads_host_) {
    const ReplicaRoom room = RoomForKept(bytes);
    fits = CheckReplicaRoom(room);
    for_journal = JournalRoomBytes(room);
  }
  if (job_.config().checkpoint_journal() == "off") {
    return fits;
  }
  const auto cards = ShareAmongRanks(
      exchange_, fits.ok() ? Json{{"journal", for_journal}} : ErrorCard(fits), CallDeadline());
  DT_RETURN_IF_ERROR(fits);
  DT_RETURN_IF_ERROR(cards.status());
  const uint64_t of_host = (*cards)[static_cast<size_t>(keeper_)].value("journal", uint64_t{0});
  saves_->SetJournalRoom(of_host / static_cast<uint64_t>(ranks_of_host_));
  return absl::OkStatus();
}

absl::StatusOr<checkpoint::Attempt> CheckpointTiers::Begin(checkpoint::AttemptOptions options) {
  if (source_ == nullptr) {
    if (!options.fresh && !job_.config().checkpoint_remote().empty()) {
      DT_RETURN_IF_ERROR(CopyOnRank0([&] { return remote_->BringBack(options.damaged); }));
    }
    return checkpoint::BeginAttempt(*disk_, exchange_, options, CallTime());
  }
  const bool is_rank0 = job_.rank() == 0;
  options.before_open = [&](const checkpoint::StepId& id) -> absl::Status {
    DT_ASSIGN_OR_RETURN(
        const std::string found,
        exchange_.Broadcast(is_rank0 ? source_->FoundFiles(id) : std::string(), CallDeadline()));
    return is_rank0 ? absl::OkStatus() : source_->TakeFoundFiles(found);
  };
  return checkpoint::BeginAttempt(*source_, exchange_, options, CallTime());
}

void CheckpointTiers::CopyRestored(const checkpoint::StepId& id) {
  if (source_ == nullptr) {
    remote_->GoOnFrom(id);
  } else if (job_.rank() == 0 && checkpoint::ReadManifest(*saves_, id).ok()) {
    remote_->Copy(id);
  }
}

absl::Status CheckpointTiers::CopyOnRank0(absl::FunctionRef<absl::Status()> copy) {
  const bool is_rank0 = job_.rank() == 0;
  // Behind the last step the agent would else expect the program's own code to go on soon.
  const InnerPhase copies(is_rank0 ? job_.state().heartbeat.get() : nullptr, "save");
  absl::Status status;
  DT_RETURN_IF_ERROR(exchange_.Together(
      [&] {
        status = is_rank0 ? copy() : absl::OkStatus();
        return absl::OkStatus();
      },
      CallTime()));
  const std::string mine = status.ok() ? kCopied : std::string(status.message());
  DT_ASSIGN_OR_RETURN(const std::string text, exchange_.Broadcast(mine, CallDeadline()));
  return is_rank0 ? status : text == kCopied ? absl::OkStatus() : absl::UnavailableError(text);
}

absl::Status CheckpointTiers::Finish(bool stopping) {
  if (saves_ == nullptr && (stopping || job_.config().checkpoint_remote().empty())) {
    return remote_->Finish();
  }
  const absl::Status status = CopyOnRank0([this] { return remote_->Finish(); });
  if (status.ok() && leads_host_ && memory_ != nullptr) {
    if (const absl::Status removed = memory_->Remove(); !removed.ok()) {
      DT_LOG(Warning) << "replicas were not removed: " << removed.message();
    }
  }
  return status;
}

}  // namespace dtrain
