#include "checkpoint/commit/save_attempt.h"

#include <algorithm>
#include <utility>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/clock.h"
#include "base/json.h"
#include "base/log.h"
#include "base/status.h"
#include "checkpoint/commit/nonce.h"
#include "checkpoint/restore/verify.h"
#include "checkpoint/storage/block_reader.h"

namespace dtrain::checkpoint {
namespace {

constexpr char kModelFolder[] = "model";
constexpr char kStateFolder[] = "state";
constexpr size_t kRankStateBytesMax = 1 << 20;

uint64_t SpecBytes(const TensorSpec& spec) {
  uint64_t bytes = DTypeBytes(spec.dtype);
  for (const int64_t dim : spec.shape) {
    bytes *= static_cast<uint64_t>(std::max<int64_t>(dim, 0));
  }
  return bytes;
}

SaveVerdict Verdict(SaveOutcome outcome, absl::Status status, uint64_t bytes = 0) {
  return {static_cast<int>(outcome), std::move(status), bytes};
}

SavePlan NoPlan(SaveOutcome outcome, absl::Status status) {
  SavePlan plan;
  plan.outcome = static_cast<int>(outcome);
  plan.status = std::move(status);
  return plan;
}

absl::StatusOr<PendingFile> SmallFile(Storage& storage, const std::string& path,
                                      absl::string_view text) {
  DT_ASSIGN_OR_RETURN(WrittenFile written, WriteSmallFile(storage, path, text, Access::kEveryone));
  return PendingFile{std::move(written), nullptr};
}

absl::Status OfRank(size_t rank, const absl::Status& status) {
  return Annotate(status, absl::StrCat("rank ", rank));
}

}  // namespace

std::vector<std::vector<size_t>> SplitIntoShards(const std::vector<TensorSpec>& tensors,
                                                 uint64_t shard_bytes_max) {
  std::vector<std::vector<size_t>> shards;
  uint64_t filled = 0;
  for (size_t i = 0; i < tensors.size(); ++i) {
    const uint64_t bytes = SpecBytes(tensors[i]);
    if (shards.empty() || filled + bytes > shard_bytes_max) {
      shards.emplace_back();  // A tensor larger than the limit gets a file of its own.
      filled = 0;
    }
    shards.back().push_back(i);
    filled += bytes;
  }
  return shards;
}

std::string ShardName(int shard, int shard_count) {
  return shard_count == 1 ? "model.safetensors"
                          : absl::StrFormat("model-%05d-of-%05d.safetensors", shard, shard_count);
}

SaveAttempt::SaveAttempt(Storage& storage, const WriterOptions& options,
                         std::optional<StepId> parent, StepId id, StateSource& source,
                         Exchange& exchange, absl::FunctionRef<void()> make_room)
    : storage_(storage),
      options_(options),
      parent_(parent),
      id_(id),
      folder_(id.DirectoryName()),
      source_(source),
      exchange_(exchange),
      make_room_(make_room) {}

Deadline SaveAttempt::ExchangeDeadline() const {
  return Deadline::After(options_.exchange_timeout);
}

SaveVerdict SaveAttempt::Run() {
  const absl::StatusOr<SavePlan> plan = AgreeOnPlan();
  if (!plan.ok()) {
    return Verdict(SaveOutcome::kAbandoned, plan.status());
  }
  if (!plan->go) {
    return Verdict(static_cast<SaveOutcome>(plan->outcome), plan->status);
  }
  const RankReport report = WriteAll(*plan);
  const auto reports = exchange_.Gather(Encode(report), ExchangeDeadline());
  // The manifest is made while the last blocks of all ranks are on their way.
  const absl::StatusOr<Prepared> manifest =
      exchange_.rank() == 0 ? Prepare(*plan, reports) : Prepared();
  const absl::Status sealed = report.status.ok() ? Seal(/*left=*/0) : report.status;
  pending_.clear();
  // After an exchange that failed here, another rank could take the next message for the first.
  const auto seals =
      reports.ok() ? exchange_.Gather(Encode(RankReport{.status = sealed}), ExchangeDeadline())
                   : reports.status();
  SaveVerdict verdict;
  if (exchange_.rank() == 0) {
    verdict = Decide(manifest, seals);
    // A rank that misses the verdict leaves its files, because they belong to the commit if there
    // is one.
    const auto sent = exchange_.Broadcast(Encode(verdict), ExchangeDeadline());
    if (!sent.ok()) {
      DT_LOG(Warning) << "not every rank heard how the save of " << id_.ToString()
                      << " ended: " << sent.status().message();
    }
  } else {
    absl::StatusOr<std::string> text =
        seals.ok() ? exchange_.Broadcast("", ExchangeDeadline()) : seals.status();
    absl::StatusOr<SaveVerdict> received =
        text.ok() ? ParseVerdict(*text) : absl::StatusOr<SaveVerdict>(text.status());
    if (received.ok()) {
      verdict = *std::move(received);
    } else if (!sealed.ok()) {  // Rank 0 cannot have committed.
      verdict = Verdict(SaveOutcome::kAbandoned, sealed);
    } else {
      verdict =
          Verdict(SaveOutcome::kUnknown,
                  Annotate(received.status(), "rank 0's decision on this save was not heard"));
    }
  }
  const auto outcome = static_cast<SaveOutcome>(verdict.outcome);
  if (outcome == SaveOutcome::kAbandoned || outcome == SaveOutcome::kFenced) {
    RemoveOwnFiles();
  }
  return verdict;
}

absl::StatusOr<SavePlan> SaveAttempt::AgreeOnPlan() {
  SaveProposal proposal;
  proposal.id = id_;
  absl::StatusOr<std::vector<TensorSpec>> model = source_.ModelTensors();
  if (model.ok()) {
    model_ = *std::move(model);
    shards_ = SplitIntoShards(model_, options_.shard_bytes_max);
    proposal.model_shards = static_cast<int>(shards_.size());
  } else {
    proposal.status = model.status();
  }
  const auto proposals = exchange_.Gather(Encode(proposal), ExchangeDeadline());
  if (exchange_.rank() == 0) {
    const SavePlan plan = MakePlan(proposals);
    DT_RETURN_IF_ERROR(exchange_.Broadcast(Encode(plan), ExchangeDeadline()).status());
    return plan;
  }
  DT_RETURN_IF_ERROR(proposals.status());
  DT_ASSIGN_OR_RETURN(const std::string text, exchange_.Broadcast("", ExchangeDeadline()));
  DT_ASSIGN_OR_RETURN(SavePlan plan, ParsePlan(text));
  if (plan.go && plan.first_shard.size() != static_cast<size_t>(exchange_.world_size())) {
    return absl::InvalidArgumentError("save plan is not for this many ranks");
  }
  return plan;
}

SavePlan SaveAttempt::MakePlan(const absl::StatusOr<std::vector<std::string>>& proposals) {
  if (!proposals.ok()) {
    return NoPlan(SaveOutcome::kAbandoned, proposals.status());
  }
  SavePlan plan;
  for (size_t rank = 0; rank < proposals->size(); ++rank) {
    const absl::StatusOr<SaveProposal> proposal = ParseProposal((*proposals)[rank]);
    const absl::Status status = proposal.ok() ? proposal->status : proposal.status();
    if (!status.ok()) {
      return NoPlan(SaveOutcome::kAbandoned, OfRank(rank, status));
    }
    if (proposal->id != id_) {
      return NoPlan(SaveOutcome::kAbandoned, absl::InternalError(absl::StrCat(
                                                 "rank ", rank, " saves ", proposal->id.ToString(),
                                                 ", rank 0 ", id_.ToString())));
    }
    plan.first_shard.push_back(plan.shard_count + 1);
    plan.shard_count += proposal->model_shards;
  }
  if (const absl::Status fence = CheckFence(); !fence.ok()) {
    return NoPlan(absl::IsAborted(fence) ? SaveOutcome::kFenced : SaveOutcome::kAbandoned, fence);
  }
  // The manifest is read, because only a readable one is a commit of this attempt.
  if (ReadManifest(storage_, id_).ok()) {
    return NoPlan(SaveOutcome::kAlreadyCommitted, absl::OkStatus());
  }
  make_room_();
  if (absl::Status status = storage_.MakeDirectories(Folders()); !status.ok()) {
    RemoveOwnFiles();
    return NoPlan(SaveOutcome::kAbandoned, status);
  }
  plan.go = true;
  return plan;
}

std::vector<std::string> SaveAttempt::Folders() const {
  return {absl::StrCat(folder_, "/", kModelFolder), absl::StrCat(folder_, "/", kStateFolder)};
}

RankReport SaveAttempt::WriteAll(const SavePlan& plan) {
  RankReport report;
  report.status = [&]() -> absl::Status {
    DT_ASSIGN_OR_RETURN(report.rank_state, source_.Rank());
    if (!report.rank_state.is_object() || DumpJson(report.rank_state).size() > kRankStateBytesMax) {
      return absl::InvalidArgumentError(
          absl::StrCat("a rank's state must be a JSON object of at most ", kRankStateBytesMax,
                       " bytes; put large state into tensors"));
    }
    DT_RETURN_IF_ERROR(WriteModel(plan, report));
    DT_RETURN_IF_ERROR(WriteState(report));
    const size_t state = pending_.size() - 1;
    DT_RETURN_IF_ERROR(WriteModelFiles(report));
    // While the last blocks of the state are on their way, all else is made durable. A name is as
    // good before its file's bytes as behind them, because both come before the manifest.
    DT_RETURN_IF_ERROR(SealAllBut(state));
    for (const std::string& folder : Folders()) {
      DT_RETURN_IF_ERROR(storage_.SyncDirectory(folder));
    }
    return absl::OkStatus();
  }();
  if (!report.status.ok()) {
    pending_.clear();
    report.files.clear();
    report.rank_state = Json::object();
  }
  return report;
}

absl::Status SaveAttempt::WriteModel(const SavePlan& plan, RankReport& report) {
  int number = plan.first_shard[static_cast<size_t>(exchange_.rank())];
  for (const std::vector<size_t>& shard : shards_) {
    std::vector<TensorSpec> specs;
    specs.reserve(shard.size());
    for (const size_t index : shard) {
      specs.push_back(model_[index]);
    }
    const auto bytes = [&](size_t i, ByteSink sink) { return source_.GiveModel(shard[i], sink); };
    DT_RETURN_IF_ERROR(Seal(/*left=*/1));  // Each takes memory for its blocks.
    DT_RETURN_IF_ERROR(Add(absl::StrCat(kModelFolder, "/", ShardName(number++, plan.shard_count)),
                           report, [&](const std::string& path) {
                             return StartSafetensors(storage_, path, specs, bytes,
                                                     Access::kEveryone);
                           }));
  }
  return absl::OkStatus();
}

absl::Status SaveAttempt::WriteModelFiles(RankReport& report) {
  if (exchange_.rank() != 0) {
    return absl::OkStatus();
  }
  DT_ASSIGN_OR_RETURN(const auto extra, source_.ModelFiles());
  for (const auto& [name, content] : extra) {
    if (!IsPlainName(name)) {
      return absl::InvalidArgumentError(absl::StrCat("model file name \"", name,
                                                     "\" must match [A-Za-z0-9_][A-Za-z0-9_.-]*, ",
                                                     "at most 128 characters"));
    }
    DT_RETURN_IF_ERROR(Add(absl::StrCat(kModelFolder, "/", name), report,
                           [&, &text = content](const std::string& path) {
                             return StartSmallFile(storage_, path, text, Access::kEveryone);
                           }));
  }
  return absl::OkStatus();
}

absl::Status SaveAttempt::WriteState(RankReport& report) {
  DT_ASSIGN_OR_RETURN(const std::vector<TensorSpec> specs, source_.StateTensors());
  DT_RETURN_IF_ERROR(Seal(/*left=*/1));
  return Add(
      StatePath(exchange_.rank(), exchange_.world_size()), report, [&](const std::string& path) {
        const auto bytes = [&](size_t i, ByteSink sink) { return source_.GiveState(i, sink); };
        return StartSafetensors(storage_, path, specs, bytes, Access::kOwner);
      });
}

absl::Status SaveAttempt::Add(
    const std::string& name, RankReport& report,
    absl::FunctionRef<absl::StatusOr<PendingFile>(const std::string& path)> write) {
  const std::string path = absl::StrCat(folder_, "/", name);
  own_files_.push_back(path);
  absl::StatusOr<PendingFile> started = write(path);
  if (absl::IsAlreadyExists(started.status())) {
    // Left by this rank if an earlier save of this step was given up and could not be cleaned.
    DT_RETURN_IF_ERROR(storage_.RemoveFile(path));
    started = write(path);
  }
  DT_RETURN_IF_ERROR(started.status());
  pending_.push_back(*std::move(started));
  report.files.push_back(pending_.back().written);
  report.files.back().path = name;
  return absl::OkStatus();
}

absl::Status SaveAttempt::Seal(size_t left) {
  const auto is_at_work = [](const PendingFile& pending) { return pending.file != nullptr; };
  size_t done = 0;
  auto at_work = static_cast<size_t>(std::count_if(pending_.begin(), pending_.end(), is_at_work));
  while (done < pending_.size() && (at_work > left || !is_at_work(pending_[done]))) {
    PendingFile& pending = pending_[done++];
    at_work -= is_at_work(pending) ? 1 : 0;
    DT_RETURN_IF_ERROR(SealOne(pending));
  }
  pending_.erase(pending_.begin(), pending_.begin() + static_cast<std::ptrdiff_t>(done));
  return absl::OkStatus();
}

absl::Status SaveAttempt::SealAllBut(size_t last) {
  PendingFile kept = std::move(pending_[last]);
  pending_.erase(pending_.begin() + static_cast<std::ptrdiff_t>(last));
  const size_t files = pending_.size();
  const size_t folders = exchange_.rank() == 0 ? 1 : 0;  // It has made them.
  DT_RETURN_IF_ERROR(ForEachAtOnce(
      files + folders,
      [&](uint64_t i) {
        return i < files ? SealOne(pending_[i]) : storage_.SyncParents(Folders());
      },
      storage_.syncs_at_once()));
  pending_.clear();
  pending_.push_back(std::move(kept));
  return absl::OkStatus();
}

absl::Status SaveAttempt::SealOne(PendingFile& pending) {
  DT_RETURN_IF_ERROR(FinishFile(storage_, pending));
  return options_.verify_after_write
             ? VerifyFile(storage_, pending.written.path, pending.written.checksum, Verify::kHashes,
                          /*from_medium=*/true)
             : absl::OkStatus();
}

absl::Status SaveAttempt::CheckFence() {
  DT_ASSIGN_OR_RETURN(const std::vector<int64_t> epochs, ListEpochs(storage_));
  if (!epochs.empty() && epochs.back() > id_.epoch) {
    return absl::AbortedError(absl::StrCat(
        storage_.DisplayName(EpochPath(epochs.back())),
        " shows that a newer attempt has begun; this one, epoch ", id_.epoch, ", must end"));
  }
  return absl::OkStatus();
}

absl::StatusOr<SaveAttempt::Prepared> SaveAttempt::Prepare(
    const SavePlan& plan, const absl::StatusOr<std::vector<std::string>>& reports) {
  DT_RETURN_IF_ERROR(reports.status());
  DT_ASSIGN_OR_RETURN(const Manifest manifest, MakeManifest(plan, *reports));
  Prepared prepared;
  prepared.text = EncodeManifest(manifest);
  prepared.bytes = manifest.data_bytes() + prepared.text.size();
  // A manifest that could not be read back must not be committed, such as one with a name from two
  // ranks or a bad path.
  DT_RETURN_IF_ERROR(
      ParseManifest(prepared.text, storage_.DisplayName(absl::StrCat(folder_, "/", kManifestName)))
          .status());
  return prepared;
}

SaveVerdict SaveAttempt::Decide(const absl::StatusOr<Prepared>& manifest,
                                const absl::StatusOr<std::vector<std::string>>& seals) {
  absl::Status status = manifest.status();
  status.Update(seals.status());
  for (size_t rank = 0; status.ok() && rank < seals->size(); ++rank) {
    const absl::StatusOr<RankReport> seal = ParseReport((*seals)[rank]);
    status = OfRank(rank, seal.ok() ? seal->status : seal.status());
  }
  if (!status.ok()) {
    return Verdict(SaveOutcome::kAbandoned, status);
  }
  if (const absl::Status fence = CheckFence(); !fence.ok()) {
    return Verdict(absl::IsAborted(fence) ? SaveOutcome::kFenced : SaveOutcome::kAbandoned, fence);
  }
  return Commit(*manifest);
}

absl::StatusOr<Manifest> SaveAttempt::MakeManifest(const SavePlan& plan,
                                                   const std::vector<std::string>& reports) {
  Manifest manifest;
  manifest.job = options_.epoch.job;
  manifest.id = id_;
  manifest.parent = parent_;
  manifest.nonce = RandomNonce();
  manifest.world_size = exchange_.world_size();
  manifest.created_unix_ms = absl::ToUnixMillis(Clock::Real().WallTime());
  DT_ASSIGN_OR_RETURN(manifest.state, source_.Job());
  for (size_t rank = 0; rank < reports.size(); ++rank) {
    absl::StatusOr<RankReport> report = ParseReport(reports[rank]);
    const absl::Status status = report.ok() ? report->status : report.status();
    if (!status.ok()) {
      return OfRank(rank, status);
    }
    manifest.rank_state.push_back(std::move(report->rank_state));
    for (WrittenFile& file : report->files) {
      for (TensorEntry& tensor : file.tensors) {
        manifest.tensors.push_back({manifest.files.size(), std::move(tensor)});
      }
      manifest.files.push_back({std::move(file.path), std::move(file.checksum)});
    }
  }
  if (plan.shard_count > 1) {
    DT_RETURN_IF_ERROR(AddIndex(manifest));
  }
  return manifest;
}

// Adds model.safetensors.index.json in the form that transformers reads.
absl::Status SaveAttempt::AddIndex(Manifest& manifest) {
  uint64_t parameters = 0;
  uint64_t bytes = 0;
  std::map<std::string, std::string> weight_map;
  for (const ManifestTensor& tensor : manifest.tensors) {
    const std::string& path = manifest.files[tensor.file].path;
    if (absl::StartsWith(path, "model/")) {
      uint64_t elements = 1;
      for (const uint64_t dim : tensor.entry.shape) {
        elements *= dim;
      }
      parameters += elements;
      bytes += tensor.entry.bytes();
      weight_map[tensor.entry.name] = path.substr(sizeof("model/") - 1);
    }
  }
  std::string map = "{";
  for (const auto& [name, file] : weight_map) {
    absl::StrAppend(&map, map.size() > 1 ? "," : "", "\n    ", DumpJson(name), ": ",
                    DumpJson(file));
  }
  const std::string text =
      absl::StrCat("{\n  \"metadata\": {\"total_parameters\": ", parameters,
                   ", \"total_size\": ", bytes, "},\n  \"weight_map\": ", map, "\n  }\n}\n");
  RankReport report;
  DT_RETURN_IF_ERROR(Add("model/model.safetensors.index.json", report,
                         [&](const std::string& path) { return SmallFile(storage_, path, text); }));
  manifest.files.push_back({report.files[0].path, report.files[0].checksum});
  return storage_.SyncDirectory(absl::StrCat(folder_, "/", kModelFolder));
}

SaveVerdict SaveAttempt::Commit(const Prepared& manifest) {
  const auto& [text, bytes] = manifest;
  const std::string path = absl::StrCat(folder_, "/", kManifestName);
  const absl::Status status = storage_.Publish(path, text);
  if (status.ok()) {
    return Verdict(SaveOutcome::kCommitted, absl::OkStatus(), bytes);
  }
  // The commit may have succeeded although its reply was lost, so the file's content decides.
  const auto found = ReadSmallFile(storage_, path, kManifestBytesMax);
  if (absl::IsNotFound(found.status())) {
    return Verdict(SaveOutcome::kAbandoned, status);
  }
  if (!found.ok()) {
    return Verdict(SaveOutcome::kUnknown, status);
  }
  if (*found != text) {
    return Verdict(SaveOutcome::kFenced,
                   absl::AbortedError(absl::StrCat(storage_.DisplayName(path),
                                                   " was written by another process of epoch ",
                                                   id_.epoch, "; this one must end")));
  }
  if (const absl::Status again = storage_.SyncDirectory(folder_); !again.ok()) {
    return Verdict(SaveOutcome::kUnknown, status);
  }
  return Verdict(SaveOutcome::kCommitted, absl::OkStatus(), bytes);
}

void SaveAttempt::RemoveOwnFiles() {
  for (const std::string& path : own_files_) {
    const absl::Status status = storage_.RemoveFile(path);
    if (!status.ok() && !absl::IsNotFound(status)) {
      DT_LOG(Warning) << "left behind by a save that was given up: " << status.message();
    }
  }
  // Only the last rank to come here finds the folders empty and removes them.
  storage_.RemoveDirectory(absl::StrCat(folder_, "/", kModelFolder)).IgnoreError();
  storage_.RemoveDirectory(absl::StrCat(folder_, "/", kStateFolder)).IgnoreError();
  storage_.RemoveDirectory(folder_).IgnoreError();
}

}  // namespace dtrain::checkpoint
