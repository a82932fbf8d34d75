// One save on one rank: the phases of the commit protocol, in order. Used only by Writer, from one
// thread.
//
// propose -> plan -> write -> report -> seal -> report again -> check and publish (rank 0) ->
// verdict. The first report has the checksums of all files, the second says that they are durable.
// A rank takes part in every exchange whatever has failed on it, so that no rank waits for one that
// gave up.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "checkpoint/commit/save_messages.h"
#include "checkpoint/commit/writer.h"
#include "checkpoint/exchange.h"
#include "checkpoint/state_source.h"
#include "checkpoint/storage/storage.h"

namespace dtrain::checkpoint {

// For each of a rank's files in model/, the indices of the tensors in it.
std::vector<std::vector<size_t>> SplitIntoShards(const std::vector<TensorSpec>& tensors,
                                                 uint64_t shard_bytes_max);
// "model.safetensors" when there is one, else "model-00001-of-00005.safetensors".
std::string ShardName(int shard, int shard_count);

class SaveAttempt {
 public:
  // `make_room` is called on rank 0 when the save is certain to begin and nothing is written yet:
  // all ranks have ended their earlier saves and no newer attempt has begun. It must outlive this
  // object.
  SaveAttempt(Storage& storage, const WriterOptions& options, std::optional<StepId> parent,
              StepId id, StateSource& source, Exchange& exchange,
              absl::FunctionRef<void()> make_room);

  // Blocks until the save is decided; cleans up when it was given up.
  SaveVerdict Run();

 private:
  absl::StatusOr<SavePlan> AgreeOnPlan();
  SavePlan MakePlan(const absl::StatusOr<std::vector<std::string>>& proposals);
  std::vector<std::string> Folders() const;
  // Appends all bytes of this rank. All is durable then but the last large file's content.
  RankReport WriteAll(const SavePlan& plan);
  absl::Status WriteModel(const SavePlan& plan, RankReport& report);
  absl::Status WriteState(RankReport& report);
  // Begins the small files of model/, on rank 0.
  absl::Status WriteModelFiles(RankReport& report);
  // Creates a file of this rank anew and reports it. It is sealed later, while the next is written.
  absl::Status Add(const std::string& name, RankReport& report,
                   absl::FunctionRef<absl::StatusOr<PendingFile>(const std::string& path)> write);
  // Seals files in their order, until at most `left` are at work.
  absl::Status Seal(size_t left);
  // Seals all but the one at this place, and makes the names of the folders durable, several at
  // once.
  absl::Status SealAllBut(size_t last);
  absl::Status SealOne(PendingFile& pending);
  // A manifest that can be published as soon as all files are durable.
  struct Prepared {
    std::string text;
    uint64_t bytes = 0;  // Its own and those of all files.
  };
  absl::StatusOr<Prepared> Prepare(const SavePlan& plan,
                                   const absl::StatusOr<std::vector<std::string>>& reports);
  SaveVerdict Decide(const absl::StatusOr<Prepared>& manifest,
                     const absl::StatusOr<std::vector<std::string>>& seals);
  absl::StatusOr<Manifest> MakeManifest(const SavePlan& plan,
                                        const std::vector<std::string>& reports);
  absl::Status AddIndex(Manifest& manifest);
  SaveVerdict Commit(const Prepared& manifest);
  absl::Status CheckFence();
  void RemoveOwnFiles();
  Deadline ExchangeDeadline() const;

  Storage& storage_;
  const WriterOptions& options_;
  const std::optional<StepId> parent_;
  const StepId id_;
  const std::string folder_;
  StateSource& source_;
  Exchange& exchange_;
  const absl::FunctionRef<void()> make_room_;
  std::vector<TensorSpec> model_;
  std::vector<std::vector<size_t>> shards_;
  std::vector<std::string> own_files_;
  std::vector<PendingFile> pending_;  // Not sealed yet, in the order of Add.
};

}  // namespace dtrain::checkpoint
