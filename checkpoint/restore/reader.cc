#include "checkpoint/restore/reader.h"

#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/json.h"
#include "base/log.h"
#include "base/status.h"
#include "checkpoint/restore/lineage.h"
#include "checkpoint/storage/checked_file.h"

namespace dtrain::checkpoint {
namespace {

constexpr char kModelFolder[] = "model/";
// First character of rank 0's message when it could not begin an epoch.
constexpr char kFailed = '!';
constexpr uint64_t kModelFileBytesMax = 256U << 20;

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

// The first tensor of `file` whose entry in the file differs from the manifest's.
absl::Status CheckIndex(const Manifest& manifest, size_t file, const SafetensorsHeader& header,
                        const std::string& display_name) {
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
  return absl::OkStatus();
}

}  // namespace

Checkpoint::Checkpoint(Storage& storage, Manifest manifest)
    : storage_(storage), manifest_(std::move(manifest)), open_(manifest_.files.size()) {
  for (size_t i = 0; i < manifest_.tensors.size(); ++i) {
    const ManifestTensor& tensor = manifest_.tensors[i];
    tensors_[Key(manifest_.files[tensor.file].path, tensor.entry.name)] = i;
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

absl::StatusOr<const SafetensorsReader*> Checkpoint::OpenTensors(size_t file) {
  if (open_[file] == nullptr) {
    const ManifestFile& listed = manifest_.files[file];
    const std::string path = absl::StrCat(manifest_.id.DirectoryName(), "/", listed.path);
    const std::string display_name = storage_.DisplayName(path);
    DT_RETURN_IF_ERROR(VerifyFile(storage_, path, listed.checksum, Verify::kSizes));
    DT_ASSIGN_OR_RETURN(auto opened, storage_.OpenFile(path));
    DT_ASSIGN_OR_RETURN(
        auto reader, SafetensorsReader::Open(std::make_unique<CheckedFile>(
                                                 std::move(opened), listed.checksum, display_name),
                                             display_name));
    DT_RETURN_IF_ERROR(CheckIndex(manifest_, file, reader.header(), display_name));
    open_[file] = std::make_unique<SafetensorsReader>(std::move(reader));
  }
  return open_[file].get();
}

absl::Status Checkpoint::Read(const std::string& key, const TensorSpec& expected,
                              absl::Span<std::byte> into) {
  const auto found = tensors_.find(key);
  if (found == tensors_.end()) {
    return absl::NotFoundError(absl::StrCat(DisplayName(), " holds no tensor ", expected.name));
  }
  const ManifestTensor& tensor = manifest_.tensors[found->second];
  if (tensor.entry.dtype != SafetensorsDType(expected.dtype) ||
      !SameShape(tensor.entry, expected)) {
    return absl::InvalidArgumentError(
        absl::StrCat(DisplayName(), ": tensor ", expected.name, " is ", tensor.entry.dtype, " [",
                     absl::StrJoin(tensor.entry.shape, ", "), "]; the program has ",
                     SafetensorsDType(expected.dtype), " [", absl::StrJoin(expected.shape, ", "),
                     "]: is this the model that was saved?"));
  }
  DT_ASSIGN_OR_RETURN(const SafetensorsReader* reader, OpenTensors(tensor.file));
  return reader->Read(tensor.entry, into);
}

absl::Status Checkpoint::ReadModelTensor(const TensorSpec& expected, absl::Span<std::byte> into) {
  return Read(Key(kModelFolder, expected.name), expected, into);
}

absl::Status Checkpoint::ReadStateTensor(int rank, const TensorSpec& expected,
                                         absl::Span<std::byte> into) {
  return Read(Key(StatePath(rank, manifest_.world_size), expected.name), expected, into);
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
  const std::string full = absl::StrCat(manifest_.id.DirectoryName(), "/", path);
  DT_RETURN_IF_ERROR(VerifyFile(storage_, full, listed->checksum, Verify::kHashes));
  return ReadSmallFile(storage_, full, kModelFileBytesMax);
}

namespace {

// The result of a search through the lineage.
struct Search {
  std::vector<LineageSegment> lineage;
  std::unique_ptr<Checkpoint> found;  // Null: none can be used.
  size_t rejected = 0;
  absl::Status newest_rejection;
};

absl::StatusOr<Search> SearchLineage(Storage& storage) {
  Search search;
  DT_ASSIGN_OR_RETURN(const EpochMap epochs, ReadEpochs(storage));
  search.lineage = Lineage(epochs);
  DT_ASSIGN_OR_RETURN(std::vector<StepId> commits, ListCheckpoints(storage));
  for (const StepId& id : OnLineage(search.lineage, std::move(commits))) {
    absl::StatusOr<std::unique_ptr<Checkpoint>> checkpoint =
        Checkpoint::Open(storage, id, Verify::kHashes);
    if (checkpoint.ok()) {
      search.found = *std::move(checkpoint);
      return search;
    }
    // An unreadable checkpoint may be intact, and resuming from an older one would lose its steps.
    if (absl::IsPermissionDenied(checkpoint.status())) {
      return absl::PermissionDeniedError(absl::StrCat(
          "checkpoint of ", id.ToString(), " cannot be read: ", checkpoint.status().message(),
          "; make it readable for this user, or move it away to resume from the one before it"));
    }
    DT_LOG(Warning) << "checkpoint of " << id.ToString()
                    << " is not used: " << checkpoint.status().message()
                    << "; trying the one before it";
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
      folders.push_back(entry.name);
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

}  // namespace

absl::StatusOr<std::unique_ptr<Checkpoint>> FindLatest(Storage& storage) {
  DT_ASSIGN_OR_RETURN(Search search, SearchLineage(storage));
  if (search.found == nullptr) {
    return absl::NotFoundError(absl::StrCat(storage.DisplayName(""),
                                            " holds no usable checkpoint (", search.rejected,
                                            " were looked at)"));
  }
  return std::move(search.found);
}

absl::StatusOr<Attempt> BeginAttempt(Storage& storage, Exchange& exchange,
                                     const AttemptOptions& options, Deadline deadline) {
  Attempt attempt;
  const auto begin = [&]() -> absl::Status {
    if (!options.fresh) {
      DT_RETURN_IF_ERROR(options.before_search != nullptr ? options.before_search()
                                                          : absl::OkStatus());
      DT_ASSIGN_OR_RETURN(Search search, SearchLineage(storage));
      if (search.found == nullptr) {
        DT_RETURN_IF_ERROR(CheckNothingIsLost(storage, search, options));
      } else {
        WarnOfLostSteps(storage, search);
      }
      attempt.checkpoint = std::move(search.found);
    }
    std::optional<StepId> from;
    if (attempt.checkpoint != nullptr) {
      from = attempt.checkpoint->manifest().id;
      // Its writer may have died before it was durable, and this attempt counts on it.
      DT_RETURN_IF_ERROR(storage.SyncDirectory(from->DirectoryName()));
    }
    DT_ASSIGN_OR_RETURN(attempt.epoch,
                        BeginEpoch(storage, options.job, exchange.world_size(), from));
    return absl::OkStatus();
  };
  if (exchange.rank() == 0) {
    const absl::Status status = begin();
    const std::string text = status.ok() ? EncodeEpoch(attempt.epoch)
                                         : absl::StrCat(std::string(1, kFailed), status.message());
    DT_RETURN_IF_ERROR(exchange.Broadcast(text, deadline).status());
    DT_RETURN_IF_ERROR(status);
    if (attempt.checkpoint != nullptr && options.before_open != nullptr) {
      DT_RETURN_IF_ERROR(options.before_open(attempt.checkpoint->manifest().id));
    }
    return attempt;
  }
  const absl::StatusOr<std::string> text = exchange.Broadcast("", deadline);
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
    // Rank 0 has read every byte; this rank checks the blocks that it reads itself.
    DT_ASSIGN_OR_RETURN(attempt.checkpoint,
                        Checkpoint::Open(storage, *attempt.epoch.resumed_from, Verify::kSizes));
  }
  return attempt;
}

}  // namespace dtrain::checkpoint
