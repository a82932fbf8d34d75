#include "checkpoint/restore/find_model.h"

#include <filesystem>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/file.h"
#include "base/log.h"
#include "base/status.h"
#include "checkpoint/restore/lineage.h"
#include "checkpoint/restore/open_target.h"
#include "checkpoint/restore/reader.h"
#include "checkpoint/restore/verify.h"
#include "checkpoint/storage/s3/s3_storage.h"

namespace dtrain::checkpoint {
namespace {

namespace fs = std::filesystem;

constexpr char kModelPrefix[] = "model/";

bool Has(const std::string& folder, const char* name) {
  return FileExists(absl::StrCat(folder, "/", name));
}

// Whether `accepts` takes the name of something in `folder`.
bool HoldsName(const std::string& folder, absl::FunctionRef<bool(const std::string&)> accepts) {
  std::error_code error;
  for (fs::directory_iterator it(folder, error), end; !error && it != end; it.increment(error)) {
    if (accepts(it->path().filename().string())) {
      return true;
    }
  }
  return false;
}

bool HoldsWeights(const std::string& folder) {
  return HoldsName(folder,
                   [](const std::string& name) { return absl::EndsWith(name, ".safetensors"); });
}

// A run directory has a config.json too, which is the run's.
bool IsModelFolder(const std::string& path) {
  return HoldsWeights(path) || (Has(path, "config.json") && !Has(path, "run.json"));
}

// One under its own name, by which OpenTarget knows it.
bool IsCheckpoint(const std::string& path) {
  const fs::path folder = fs::path(absl::StrCat(path, "/")).parent_path();
  return Has(path, kManifestName) && StepId::FromDirectoryName(folder.filename().string());
}

bool HoldsCheckpoints(const std::string& path) {
  return Has(path, "run.json") || Has(path, "epochs") || Has(path, "checkpoints") ||
         IsCheckpoint(path) || HoldsName(path, [](const std::string& name) {
           return StepId::FromDirectoryName(name).has_value();
         });
}

// The checkpoint that was named, or those on the run's lineage, the newest first.
absl::StatusOr<std::vector<StepId>> Candidates(const Target& target) {
  DT_ASSIGN_OR_RETURN(std::vector<StepId> ids, CheckpointsOf(target));
  if (target.id.has_value()) {
    return ids;
  }
  DT_ASSIGN_OR_RETURN(const EpochMap epochs, ReadEpochs(*target.storage));
  const StepId newest = ids.front();
  std::vector<StepId> line = OnLineage(Lineage(epochs), std::move(ids));
  if (line.empty()) {
    return absl::NotFoundError(absl::StrFormat(
        "%s holds no finished checkpoint of the run's newest attempt, which began anew; name an "
        "older one, as %s",
        target.storage->DisplayName(""), target.storage->DisplayName(newest.DirectoryName())));
  }
  return line;
}

// OK: every file of the checkpoint's model is whole.
absl::Status VerifyModel(Storage& storage, StepId id) {
  DT_ASSIGN_OR_RETURN(const Manifest manifest, ReadManifest(storage, id));
  for (const ManifestFile& file : manifest.files) {
    if (absl::StartsWith(file.path, kModelPrefix)) {
      DT_RETURN_IF_ERROR(VerifyFile(storage, absl::StrCat(id.DirectoryName(), "/", file.path),
                                    file.checksum, Verify::kHashes));
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::string> FindModel(const std::string& path) {
  if (IsS3Url(path)) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "%s is in an object store; bring the model to a folder first: dtrain checkpoint export %s "
        "FOLDER",
        path, path));
  }
  if (IsModelFolder(path)) {
    return path;
  }
  if (!HoldsCheckpoints(path)) {
    // A part of a checkpoint was copied, or one under another name.
    const std::string model = absl::StrCat(path, "/model");
    return HoldsWeights(model)
               ? absl::StatusOr<std::string>(model)
               : absl::NotFoundError(absl::StrFormat(
                     "%s is no model folder (no .safetensors file), no checkpoint (step-...) and "
                     "no run directory with checkpoints; give one of them",
                     path));
  }
  DT_ASSIGN_OR_RETURN(const Target target, OpenTarget(path));
  DT_ASSIGN_OR_RETURN(const std::vector<StepId> ids, Candidates(target));
  Storage& storage = *target.storage;
  absl::Status newest;
  for (const StepId id : ids) {
    const absl::Status status = VerifyModel(storage, id);
    if (status.ok()) {
      return storage.DisplayName(absl::StrCat(id.DirectoryName(), "/model"));
    }
    if (absl::IsPermissionDenied(status)) {  // It may be whole.
      return CannotBeRead(id, status);
    }
    newest.Update(status);
    DT_LOG(Warning) << "the model of " << id.ToString() << " is passed over: " << status.message();
  }
  return absl::InvalidArgumentError(
      absl::StrFormat("none of the %d checkpoints of %s has a whole model; of the newest: %s",
                      ids.size(), path, newest.message()));
}

}  // namespace dtrain::checkpoint
