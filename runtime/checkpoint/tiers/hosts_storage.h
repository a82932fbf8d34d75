// The disks of all hosts as one storage: each rank writes to its own host's and reads from all.
//
// A path says where a file goes:
//   step-.../model, state   a rank creates its files on its host's disk, and with replicas also in
//                           the memory of the next host
//   step-.../MANIFEST.json  on every host, once all files are there: any one of them is the commit
//   epochs                  in the tier behind, which decides, and copies on every host
//   journal                 on the host of the rank that writes them, and with replicas also in
//                           the memory of the next host
//   latest                  on the host of the rank that writes it
//
// Rank 0, which alone removes checkpoints, acts on all hosts; another rank acts on its own and on
// the memory of the next one. A file that several places hold is read from the first of: disks in
// the order of hosts, memories likewise, the tier behind. A rank that finds the first one damaged
// removes it where there is another. A file of the journal is read from its longest copy.
//
// A replica that cannot be written fails no save: it is logged, and rank 0 reports it. Thread-safe.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "checkpoint/format/manifest.h"
#include "checkpoint/format/step_id.h"
#include "checkpoint/storage/storage.h"
#include "runtime/checkpoint/tiers/file_index.h"
#include "runtime/checkpoint/tiers/hosts_replicas.h"
#include "runtime/checkpoint/tiers/peer_storage.h"

namespace dtrain {

class HostsStorage final : public checkpoint::Storage {
 public:
  struct Place {
    checkpoint::Storage* storage = nullptr;
    PeerStorage* peer = nullptr;  // The same, if it is another host's.
  };
  struct Options {
    std::vector<Place> disks;               // By host.
    std::vector<Place> memories;            // By host; empty: nobody keeps replicas.
    checkpoint::Storage* behind = nullptr;  // Reached by every rank.
    bool reads_behind = false;              // Checkpoints of the tier behind count too.
    size_t host = 0;                        // This rank's.
    bool is_rank0 = false;
    // Called on rank 0 behind a commit whose replicas are not whole. May be null.
    std::function<void(const checkpoint::StepId& id, const std::string& why)> on_lacking_replica;
    // Called when this rank's part of the journal goes on without a replica. May be null.
    std::function<void(const std::string& file, const std::string& why)> on_journal_alone;
  };

  // REQUIRES: all storages outlive this object.
  explicit HostsStorage(Options options);

  absl::StatusOr<std::unique_ptr<checkpoint::WritableFile>> CreateFile(
      const std::string& path, uint64_t bytes_expected, checkpoint::Access access) override;
  absl::StatusOr<std::unique_ptr<checkpoint::ReadableFile>> OpenFile(
      const std::string& path) override;
  absl::Status Publish(const std::string& path, absl::string_view content) override;
  absl::Status Replace(const std::string& path, absl::string_view content) override;
  absl::Status MakeDirectory(const std::string& path) override;
  absl::Status SyncDirectory(const std::string& path) override;
  absl::StatusOr<std::vector<Entry>> List(const std::string& path) override;
  absl::Status RemoveFile(const std::string& path) override;
  absl::Status RemoveDirectory(const std::string& path) override;
  absl::StatusOr<bool> DropDamaged(const std::string& path) override;
  absl::StatusOr<checkpoint::FileCopy> OpenCopy(const std::string& path, size_t copy) override;
  absl::Status KeepCopies(const std::string& path) override;
  absl::StatusOr<std::optional<checkpoint::FileChecksum>> SendFile(
      const std::string& path, checkpoint::Access access, checkpoint::Storage& to) override;
  bool may_hold_copies() const override { return true; }
  size_t hosts() const override { return options_.disks.size(); }
  // Counts this host's disk once for each host, as if all had as much.
  std::optional<uint64_t> FreeBytes() override;
  absl::StatusOr<std::string> Probe() override;
  std::string DisplayName(const std::string& path) const override;

  // Where the files of a checkpoint are, as a text, for TakeFoundFiles of another rank, which then
  // need not ask every host. REQUIRES: equal options on both, but for `host` and `is_rank0`.
  std::string FoundFiles(const checkpoint::StepId& id) const;
  absl::Status TakeFoundFiles(const std::string& text);

  // This rank's journal may take so much of the next host's memory; nothing before this call.
  void SetJournalRoom(uint64_t bytes) { journal_room_ = bytes; }

 private:
  bool has_replicas() const { return !options_.memories.empty() && options_.disks.size() > 1; }
  bool is_memory(size_t place) const { return place >= options_.disks.size() && place < behind_; }
  size_t next_memory() const {
    return options_.disks.size() + (options_.host + 1) % options_.disks.size();
  }
  checkpoint::Storage& own() const { return *places_[options_.host].storage; }

  // The places that a change of `path` by this rank concerns, and those that List looks at.
  std::vector<size_t> PlacesToChange(const std::string& path) const;
  std::vector<size_t> PlacesToList(const std::string& path) const;
  // Calls body for several places at once. NotFound: at all of them. The error of a disk counts,
  // that of a memory is as if it held nothing.
  absl::Status OnPlaces(const std::vector<size_t>& places,
                        absl::FunctionRef<absl::Status(checkpoint::Storage&)> body);
  // Asks the hosts, unless the answer is known. Empty: no place holds the file.
  absl::StatusOr<FileIndex::Copies> Locate(const std::string& path, bool anew);
  absl::StatusOr<std::unique_ptr<checkpoint::ReadableFile>> OpenSealed(const std::string& path);
  absl::Status PublishEpoch(const std::string& path, absl::string_view content);
  absl::Status PublishManifest(const std::string& path, absl::string_view content);
  // Removes older replicas if those of the checkpoint are whole, else reports what is missing.
  void SettleReplicas(const std::string& path, absl::string_view manifest);
  absl::Status CheckReplicas(const checkpoint::Manifest& manifest);
  void NoteReplica(const absl::Status& status);
  ReplicatedFile::Replica CreateReplica(const std::string& path, uint64_t bytes,
                                        checkpoint::Access access);
  ReplicatedFile::Replica CreateJournalReplica(const std::string& path, checkpoint::Access access);
  absl::StatusOr<std::unique_ptr<checkpoint::WritableFile>> CreateJournalStream(
      const std::string& path, checkpoint::Access access);
  // ResourceExhausted: the memory has no room for a further segment of the journal.
  absl::Status CheckSegments(checkpoint::Storage& memory);
  // Saves a file of the journal, of which a memory has the longest copy, on this host's disk. The
  // copy is verified before it takes the place of a shorter one, is cut behind its last whole
  // record, and is dropped if the shorter one counts as far. DataLoss: nothing of both is whole.
  absl::Status SaveHere(const std::string& path, const checkpoint::ReadableFile& from);

  const Options options_;
  std::vector<Place> places_;  // Disks, memories, the tier behind.
  const size_t behind_;        // The last one's index.
  FileIndex index_;            // Filled by List.
  std::mutex mutex_;
  bool replica_fails_ = false;  // The last one that this rank wrote did.
  std::atomic<uint64_t> journal_room_{0};
};

}  // namespace dtrain
