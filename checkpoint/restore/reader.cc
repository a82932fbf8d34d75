#include "checkpoint/restore/reader.h"

#include <algorithm>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/deadline.h"
#include "base/device_error.h"
#include "base/json.h"
#include "base/log.h"
#include "base/status.h"
#include "checkpoint/restore/checkpoint_tensors.h"
#include "checkpoint/restore/lineage.h"

namespace dtrain::checkpoint {
namespace {

constexpr char kModelFolder[] = "model/";
// First character of rank 0's message when it could not begin an epoch.
constexpr char kFailed = '!';
constexpr uint64_t kModelFileBytesMax = 256U << 20;
constexpr char kTensorsSuffix[] = ".safetensors";
// Keeps a disk at work until the ranks have found out what each of them needs.
constexpr uint64_t kReadAheadBytes = 8 << 20;

std::string Key(absl::string_view path, absl::string_view name) {
  // A path never holds a newline, so the key is unambiguous.
  return absl::StrCat(absl::StartsWith(path, kModelFolder) ? "model" : path, "\n", name);
}

bool SameShape(const TensorEntry& entry, const TensorSpec& spec) {
  if (entry.shape.size() != spec.shape.size()) {
    return false;
  }
  for (size_t i = 0; i < entry.shape.size(); ++i) {
    if (spec.shape[i] < 0 || entry.shape[i] != static_cast<uint64_t>(spec.shape[i])) {
      return false;
    }
  }
  return true;
}

// The first tensor of `file` whose place in the file differs from the manifest's, by which the
// file's tensors begin at `data_begin`.
absl::Status CheckIndex(const Manifest& manifest, size_t file, uint64_t data_begin,
                        const SafetensorsHeader& header, const std::string& display_name) {
  size_t next = 0;
  for (const ManifestTensor& tensor : manifest.tensors) {
    if (tensor.file != file) {
      continue;
    }
    const bool same = next < header.tensors.size() &&
                      header.tensors[next].name == tensor.entry.name &&
                      header.tensors[next].dtype == tensor.entry.dtype &&
                      header.tensors[next].shape == tensor.entry.shape &&
                      header.tensors[next].begin == tensor.entry.begin;
    if (!same) {
      return absl::InvalidArgumentError(absl::StrCat(display_name, ": tensor ", tensor.entry.name,
                                                     " is not where the manifest says"));
    }
    ++next;
  }
  return header.data_begin == data_begin
             ? absl::OkStatus()
             : absl::InvalidArgumentError(absl::StrCat(display_name, ": its tensors begin at byte ",
                                                       header.data_begin,
                                                       ", those of the manifest at ", data_begin));
}

}  // namespace

Checkpoint::Checkpoint(Storage& storage, Manifest manifest)
    : storage_(storage), manifest_(std::move(manifest)) {
  uint64_t blocks = 0;
  for (const ManifestFile& file : manifest_.files) {
    first_blocks_.push_back(blocks);
    blocks += file.checksum.crc32c.size();
  }
  first_blocks_.push_back(blocks);
  seen_ = BlockSet(blocks);
  // Nothing follows the tensors of a file.
  std::vector<uint64_t> ends(manifest_.files.size());
  for (size_t i = 0; i < manifest_.tensors.size(); ++i) {
    const ManifestTensor& tensor = manifest_.tensors[i];
    tensors_[Key(manifest_.files[tensor.file].path, tensor.entry.name)] = i;
    ends[tensor.file] = std::max(ends[tensor.file], tensor.entry.end);
  }
  for (size_t file = 0; file < ends.size(); ++file) {
    data_begins_.push_back(manifest_.files[file].checksum.bytes - ends[file]);
  }
}

absl::StatusOr<std::unique_ptr<Checkpoint>> Checkpoint::Open(Storage& storage, StepId id,
                                                             Verify verify) {
  DT_ASSIGN_OR_RETURN(Manifest manifest, ReadManifest(storage, id));
  DT_RETURN_IF_ERROR(VerifyFiles(storage, manifest, verify));
  return std::unique_ptr<Checkpoint>(new Checkpoint(storage, std::move(manifest)));
}

std::string Checkpoint::DisplayName() const {
  return storage_.DisplayName(manifest_.id.DirectoryName());
}

std::vector<TensorEntry> Checkpoint::ModelTensors() const {
  std::vector<TensorEntry> tensors;
  for (const ManifestTensor& tensor : manifest_.tensors) {
    if (absl::StartsWith(manifest_.files[tensor.file].path, kModelFolder)) {
      tensors.push_back(tensor.entry);
    }
  }
  return tensors;
}

const TensorEntry* Checkpoint::FindModelEntry(const std::string& name) const {
  const auto found = tensors_.find(Key(kModelFolder, name));
  return found == tensors_.end() ? nullptr : &manifest_.tensors[found->second].entry;
}

std::vector<TensorEntry> Checkpoint::StateTensors(int rank) const {
  const std::string path = StatePath(rank, manifest_.world_size);
  std::vector<TensorEntry> tensors;
  for (const ManifestTensor& tensor : manifest_.tensors) {
    if (manifest_.files[tensor.file].path == path) {
      tensors.push_back(tensor.entry);
    }
  }
  return tensors;
}

std::string Checkpoint::PathOf(size_t file) const {
  return absl::StrCat(manifest_.id.DirectoryName(), "/", manifest_.files[file].path);
}

bool Checkpoint::HoldsTensors(size_t file) const {
  return absl::EndsWith(manifest_.files[file].path, kTensorsSuffix);
}

absl::Status Checkpoint::NoteDamage(const absl::Status& status) {
  // A peer or an object store that does not answer, or a lack of memory, says nothing of the bytes;
  // a disk that cannot read them does.
  const bool no_answer = absl::IsUnavailable(status) && !IsDeviceError(status);
  const bool may_pass = no_answer || absl::IsDeadlineExceeded(status) ||
                        absl::IsResourceExhausted(status) || absl::IsInternal(status) ||
                        absl::IsCancelled(status) || absl::IsAborted(status);
  if (!may_pass) {
    damage_.Update(status);
  }
  return status;
}

absl::StatusOr<bool> Checkpoint::CheckHeader(size_t file, absl::Span<const std::byte> begin) const {
  const absl::string_view text(reinterpret_cast<const char*>(begin.data()), begin.size());
  const uint64_t file_bytes = manifest_.files[file].checksum.bytes;
  const std::string display_name = storage_.DisplayName(PathOf(file));
  const absl::StatusOr<uint64_t> length = ParseSafetensorsLength(text.substr(0, 8), file_bytes);
  if (!length.ok()) {
    return Annotate(length.status(), display_name);
  }
  if (*length > text.size() - 8) {
    return false;
  }
  const auto header = ParseSafetensorsHeader(text.substr(8, *length), file_bytes);
  if (!header.ok()) {
    return Annotate(header.status(), display_name);
  }
  DT_RETURN_IF_ERROR(CheckIndex(manifest_, file, data_begins_[file], *header, display_name));
  return true;
}

void Checkpoint::ReadAhead(uint64_t bytes_max) const {
  if (storage_.reads_ahead()) {
    return;
  }
  // The files without tensors come first: a disk serves reads in their order, and a restore looks
  // into some of those files before it reads anything else.
  for (const bool of_tensors : {false, true}) {
    for (size_t i = 0; i < manifest_.files.size() && bytes_max > 0; ++i) {
      if (HoldsTensors(i) != of_tensors) {
        continue;
      }
      const uint64_t bytes = std::min(bytes_max, manifest_.files[i].checksum.bytes);
      const auto file = storage_.OpenFile(PathOf(i));
      if (!file.ok() || !(*file)->takes_small_reads()) {
        return;  // A read will say what is wrong, or another host has it.
      }
      (*file)->ReadAhead(0, bytes);
      bytes_max -= bytes;
    }
  }
}

absl::Status Checkpoint::CheckIndexOf(size_t file) const {
  const std::string display_name = storage_.DisplayName(PathOf(file));
  DT_ASSIGN_OR_RETURN(auto opened, OpenChecked(storage_, manifest_.id, manifest_.files[file]));
  DT_ASSIGN_OR_RETURN(const auto reader, SafetensorsReader::Open(std::move(opened), display_name));
  return CheckIndex(manifest_, file, data_begins_[file], reader.header(), display_name);
}

absl::StatusOr<Checkpoint::Place> Checkpoint::Find(const std::string& key,
                                                   const TensorSpec& expected) const {
  const auto found = tensors_.find(key);
  if (found == tensors_.end()) {
    return absl::NotFoundError(absl::StrCat(DisplayName(), " holds no tensor ", expected.name));
  }
  const ManifestTensor& tensor = manifest_.tensors[found->second];
  if (tensor.entry.dtype != SafetensorsDType(expected.dtype) ||
      !SameShape(tensor.entry, expected)) {
    return absl::InvalidArgumentError(absl::StrCat(
        DisplayName(), ": tensor ", expected.name, " is ", tensor.entry.dtype, " [",
        absl::StrJoin(tensor.entry.shape, ", "), "]; the program has ",
        SafetensorsDType(expected.dtype), " [", absl::StrJoin(expected.shape, ", "),
        SameShape(tensor.entry, expected) ? "]: give the program the precision of the checkpoint"
                                          : "]: is this the model that was saved?"));
  }
  return Place{tensor.file, data_begins_[tensor.file] + tensor.entry.begin, tensor.entry.bytes()};
}

absl::StatusOr<Checkpoint::Place> Checkpoint::FindModelTensor(const TensorSpec& expected) const {
  return Find(Key(kModelFolder, expected.name), expected);
}

absl::StatusOr<Checkpoint::Place> Checkpoint::FindStateTensor(int rank,
                                                              const TensorSpec& expected) const {
  return Find(Key(StatePath(rank, manifest_.world_size), expected.name), expected);
}

absl::Status Checkpoint::CheckLayout(absl::string_view layout_hash) const {
  if (manifest_.state.layout_hash != layout_hash) {
    return absl::FailedPreconditionError(
        absl::StrCat(DisplayName(), " was saved with parameter layout ",
                     manifest_.state.layout_hash, ", this model has ", layout_hash,
                     ": a parameter's name, shape, dtype or order has changed"));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::string> Checkpoint::ReadModelFile(const std::string& name) {
  const std::string path = absl::StrCat(kModelFolder, name);
  const ManifestFile* listed = manifest_.FindFile(path);
  if (listed == nullptr) {
    return absl::NotFoundError(absl::StrCat(DisplayName(), " holds no file ", path));
  }
  const auto file = static_cast<size_t>(listed - manifest_.files.data());
  const std::string full = PathOf(file);
  DT_RETURN_IF_ERROR(NoteDamage(VerifyFile(storage_, full, listed->checksum, Verify::kHashes)));
  auto text = ReadSmallFile(storage_, full, kModelFileBytesMax);
  DT_RETURN_IF_ERROR(NoteDamage(text.status()));
  for (uint64_t block = first_block(file); block < first_block(file + 1); ++block) {
    seen_.Add(block);
  }
  return text;
}

void LogNotUsed(const StepId& id, const absl::Status& why) {
  DT_LOG(Warning) << "checkpoint of " << id.ToString() << " is not used: " << why.message()
                  << "; trying the one before it";
}

bool HoldsWeightsAlone(const Manifest& manifest) {
  const Json& engine = manifest.state.engine;
  const auto found = engine.find("weights_only");
  return found != engine.end() && found->is_boolean() && found->get<bool>();
}

absl::Status CannotBeRead(const StepId& id, const absl::Status& why) {
  return absl::PermissionDeniedError(absl::StrCat(
      "checkpoint of ", id.ToString(), " cannot be read: ", why.message(),
      "; make it readable for this user, or move it away to resume from the one before it"));
}

namespace {

// The result of a search through the lineage.
struct Search {
  std::vector<LineageSegment> lineage;
  std::unique_ptr<Checkpoint> found;  // Null: none can be used.
  size_t rejected = 0;
  absl::Status newest_rejection;
};

// `options`: what is checked, and what is passed over.
absl::StatusOr<Search> SearchLineage(Storage& storage, const AttemptOptions& options) {
  Search search;
  search.rejected = options.damaged.size();
  if (!options.damaged.empty()) {
    search.newest_rejection = options.damaged.rbegin()->second.why;
  }
  DT_ASSIGN_OR_RETURN(const EpochMap epochs, ReadEpochs(storage));
  search.lineage = Lineage(epochs);
  DT_ASSIGN_OR_RETURN(std::vector<StepId> commits, ListCheckpoints(storage));
  for (const StepId& id : OnLineage(search.lineage, std::move(commits))) {
    if (options.damaged.contains(id)) {
      continue;
    }
    absl::StatusOr<std::unique_ptr<Checkpoint>> checkpoint =
        Checkpoint::Open(storage, id, options.verify);
    if (checkpoint.ok()) {
      search.found = *std::move(checkpoint);
      return search;
    }
    if (absl::IsPermissionDenied(checkpoint.status())) {
      return CannotBeRead(id, checkpoint.status());
    }
    LogNotUsed(id, checkpoint.status());
    ++search.rejected;
    search.newest_rejection.Update(checkpoint.status());
  }
  return search;
}

// The checkpoint that the hint names; nothing if the hint is missing or malformed.
std::optional<StepId> ReadHint(Storage& storage) {
  constexpr uint64_t kHintBytesMax = 256;
  const auto text = ReadSmallFile(storage, kLatestName, kHintBytesMax);
  return text.ok() ? StepId::FromDirectoryName(absl::StripTrailingAsciiWhitespace(*text))
                   : std::nullopt;
}

// Evidence that a run without a usable checkpoint once had one; "" when there is none.
std::string TraceOfCheckpoint(Storage& storage, const Search& search,
                              const AttemptOptions& options) {
  if (search.rejected > 0) {
    return absl::StrCat("of ", search.rejected, " checkpoint", search.rejected == 1 ? "" : "s",
                        " there, none is whole; the newest: ", search.newest_rejection.message());
  }
  const auto on_line = [&](const StepId& id) { return !OnLineage(search.lineage, {id}).empty(); };
  for (const LineageSegment& segment : search.lineage) {
    if (segment.step_max < kStepMax) {
      return absl::StrCat("an earlier attempt of this run resumed from step ", segment.step_max);
    }
  }
  if (const auto hint = ReadHint(storage); hint && on_line(*hint)) {
    return absl::StrCat(storage.DisplayName(kLatestName), " names ", hint->DirectoryName());
  }
  if (options.known_save != nullptr) {
    if (const auto known = options.known_save(); known && on_line(known->id)) {
      return absl::StrCat("this run saved step ", known->id.step, " in ", known->path);
    }
  }
  return "";
}

// Warns if the newest commits are gone while older ones are left.
void WarnOfLostSteps(Storage& storage, const Search& search) {
  const StepId found = search.found->manifest().id;
  const auto hint = ReadHint(storage);
  if (search.rejected == 0 && hint && *hint != found &&
      OnLineage(search.lineage, {found, *hint}).front() == *hint) {
    DT_LOG(Warning) << storage.DisplayName(kLatestName) << " names " << hint->DirectoryName()
                    << ", which is no checkpoint any more; going on from " << found.ToString();
  }
}

// Refuses to train from step 0 in a run whose checkpoints are gone, because this would also remove
// what may be left of them.
absl::Status CheckNothingIsLost(Storage& storage, const Search& search,
                                const AttemptOptions& options) {
  const std::string trace = TraceOfCheckpoint(storage, search, options);
  if (trace.empty()) {
    return absl::OkStatus();
  }
  DT_ASSIGN_OR_RETURN(const auto entries, storage.List(""));
  std::vector<std::string> folders;
  for (const Storage::Entry& entry : entries) {
    if (StepId::FromDirectoryName(entry.name)) {
      folders.push_back(absl::StrCat(
          entry.name, entry.is_directory ? "" : " (no folder; a link is not followed)"));
    }
  }
  constexpr size_t kNamed = 3;
  const size_t others = folders.size() > kNamed ? folders.size() - kNamed : 0;
  folders.resize(folders.size() - others);
  return absl::FailedPreconditionError(absl::StrCat(
      storage.DisplayName(""), " holds no checkpoint to resume from, but ", trace,
      ". Found there: ", folders.empty() ? "no step" : absl::StrJoin(folders, ", "),
      others > 0 ? absl::StrCat(" and ", others, " more") : "",
      search.rejected > 0 || folders.empty() ? "" : absl::StrCat(", without ", kManifestName),
      ". Bring a checkpoint back, mount its file system, correct checkpoint.dir, or start at step "
      "0 with --fresh"));
}

// Removes the records of attempts that found their checkpoint damaged, where none is whole: who
// brings one back goes on from it, though it may be newer than the last that was tried.
void ForgetTries(Storage& storage, const AttemptOptions& options) {
  for (const auto& [id, damaged] : options.damaged) {
    if (const auto status = storage.RemoveFile(EpochPath(damaged.epoch)); !status.ok()) {
      DT_LOG(Warning) << "the record of an attempt that did not begin stays: " << status.message();
    }
  }
}

// Rank 0's part: finds the checkpoint and begins the epoch.
absl::Status BeginOnRank0(Storage& storage, int world_size, const AttemptOptions& options,
                          Attempt& attempt) {
  if (!options.fresh) {
    DT_ASSIGN_OR_RETURN(Search search, SearchLineage(storage, options));
    if (search.found == nullptr) {
      const absl::Status lost = CheckNothingIsLost(storage, search, options);
      if (!lost.ok()) {
        ForgetTries(storage, options);
      }
      DT_RETURN_IF_ERROR(lost);
    } else {
      WarnOfLostSteps(storage, search);
    }
    attempt.checkpoint = std::move(search.found);
  }
  std::optional<StepId> from;
  std::string job = options.job;
  if (attempt.checkpoint != nullptr) {
    from = attempt.checkpoint->manifest().id;
    if (!HoldsWeightsAlone(attempt.checkpoint->manifest())) {
      // A run keeps its id, though a new run directory may have another one: else copies of its
      // later checkpoints would be refused beside those of before.
      job = attempt.checkpoint->manifest().job;
    }
    // Its writer may have died before it was durable, and this attempt counts on it.
    DT_RETURN_IF_ERROR(storage.SyncDirectory(from->DirectoryName()));
  }
  DT_ASSIGN_OR_RETURN(attempt.epoch, BeginEpoch(storage, job, world_size, from));
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::unique_ptr<Checkpoint>> FindLatest(Storage& storage) {
  DT_ASSIGN_OR_RETURN(Search search, SearchLineage(storage, AttemptOptions()));
  if (search.found == nullptr) {
    return absl::NotFoundError(absl::StrCat(storage.DisplayName(""),
                                            " holds no usable checkpoint (", search.rejected,
                                            " were looked at)"));
  }
  return std::move(search.found);
}

absl::StatusOr<Attempt> BeginAttempt(Storage& storage, Exchange& exchange,
                                     const AttemptOptions& options, absl::Duration timeout) {
  Attempt attempt;
  const bool is_rank0 = exchange.rank() == 0;
  absl::Status begun;
  // The others wait for rank 0, which may have to look at many records and files.
  DT_RETURN_IF_ERROR(exchange.Together(
      [&] {
        begun = is_rank0 ? BeginOnRank0(storage, exchange.world_size(), options, attempt)
                         : absl::OkStatus();
        return absl::OkStatus();
      },
      timeout));
  if (is_rank0) {
    const std::string text = begun.ok() ? EncodeEpoch(attempt.epoch)
                                        : absl::StrCat(std::string(1, kFailed), begun.message());
    DT_RETURN_IF_ERROR(exchange.Broadcast(text, Deadline::After(timeout)).status());
    DT_RETURN_IF_ERROR(begun);
    // Not before: each sync of the epoch's record would wait until a disk has read all of it.
    if (attempt.checkpoint != nullptr && options.verify == Verify::kSizes) {
      attempt.checkpoint->ReadAhead(kReadAheadBytes);
    }
    if (attempt.checkpoint != nullptr && options.before_open != nullptr) {
      DT_RETURN_IF_ERROR(options.before_open(attempt.checkpoint->manifest().id));
    }
    return attempt;
  }
  const absl::StatusOr<std::string> text = exchange.Broadcast("", Deadline::After(timeout));
  DT_RETURN_IF_ERROR(text.status());
  if (!text->empty() && text->front() == kFailed) {
    return absl::AbortedError(
        absl::StrCat("rank 0 could not begin the attempt: ", text->substr(1)));
  }
  DT_ASSIGN_OR_RETURN(attempt.epoch, ParseEpoch(*text, "rank 0's epoch record"));
  if (attempt.epoch.resumed_from) {
    DT_RETURN_IF_ERROR(options.before_open != nullptr
                           ? options.before_open(*attempt.epoch.resumed_from)
                           : absl::OkStatus());
    // The blocks that this rank reads are checked then.
    DT_ASSIGN_OR_RETURN(attempt.checkpoint,
                        Checkpoint::Open(storage, *attempt.epoch.resumed_from, Verify::kSizes));
  }
  return attempt;
}

}  // namespace dtrain::checkpoint
