#include "checkpoint/tools/weight_files.h"

#include <sys/stat.h>

#include <algorithm>
#include <filesystem>
#include <system_error>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "checkpoint/storage/plain_file.h"

namespace dtrain::checkpoint {
namespace {

namespace fs = std::filesystem;

constexpr uint64_t kSmallFileBytesMax = 256U << 20;
constexpr const char* kSmallFiles[] = {"config.json",
                                       "generation_config.json",
                                       "tokenizer.json",
                                       "tokenizer_config.json",
                                       "tokenizer.model",
                                       "vocab.json",
                                       "merges.txt",
                                       "special_tokens_map.json",
                                       "added_tokens.json",
                                       "chat_template.jinja",
                                       "preprocessor_config.json"};

bool IsFolderPath(const std::string& path) {
  struct stat info {};
  return stat(path.c_str(), &info) == 0 && S_ISDIR(info.st_mode);
}

bool IsWithin(const fs::path& path, const fs::path& folder) {
  return std::mismatch(folder.begin(), folder.end(), path.begin(), path.end()).first ==
         folder.end();
}

// The folder of a download cache to which the links of its models/.../snapshots/REVISION lead; ""
// for other folders.
fs::path BlobsOf(const fs::path& folder) {
  const fs::path snapshots = folder.parent_path();
  return snapshots.filename() == "snapshots" ? snapshots.parent_path() / "blobs" : fs::path();
}

// InvalidArgument if `name` in `directory` is a link that leads out of it.
absl::Status CheckLink(const std::string& directory, const std::string& name) {
  std::error_code error;
  const fs::path link = fs::path(directory) / name;
  if (!fs::is_symlink(fs::symlink_status(link, error)) || error) {
    return absl::OkStatus();
  }
  const fs::path root = fs::canonical(directory, error);
  const fs::path target = error ? fs::path() : fs::canonical(link, error);
  if (error) {
    return ErrnoStatus(error.value(), absl::StrCat("cannot follow the link ", link.string()));
  }
  const fs::path blobs = BlobsOf(root);
  if (IsWithin(target, root) || (!blobs.empty() && IsWithin(target, blobs))) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(absl::StrCat(link.string(), " is a link to ", target.string(),
                                                 ", outside of the folder; copy the file there"));
}

// Weights and small files of a folder may be links; all are looked at before any is opened.
absl::Status CheckLinks(const std::string& directory) {
  std::error_code error;
  for (fs::directory_iterator it(directory, error), end; !error && it != end; it.increment(error)) {
    const std::string name = it->path().filename();
    const bool is_read =
        absl::EndsWith(name, ".safetensors") || name == "model.safetensors.index.json" ||
        std::find(std::begin(kSmallFiles), std::end(kSmallFiles), name) != std::end(kSmallFiles);
    DT_RETURN_IF_ERROR(is_read ? CheckLink(directory, name) : absl::OkStatus());
  }
  return error ? ErrnoStatus(error.value(), absl::StrCat("cannot list ", directory))
               : absl::OkStatus();
}

}  // namespace

absl::StatusOr<WeightFiles> WeightFiles::Open(const std::string& path) {
  WeightFiles files;
  files.path_ = path;
  if (IsFolderPath(path)) {
    DT_RETURN_IF_ERROR(CheckLinks(path));
    DT_ASSIGN_OR_RETURN(files.folder_, HuggingFaceFolder::Open(path));
    for (const auto& [name, entry] : files.folder_->tensors()) {
      files.tensors_.push_back(*entry);
    }
    return files;
  }
  DT_ASSIGN_OR_RETURN(auto opened, OpenPlainFile(path));
  DT_ASSIGN_OR_RETURN(auto reader, SafetensorsReader::Open(std::move(opened), path));
  files.file_ = std::make_unique<SafetensorsReader>(std::move(reader));
  files.tensors_ = files.file_->header().tensors;
  std::sort(files.tensors_.begin(), files.tensors_.end(),
            [](const TensorEntry& a, const TensorEntry& b) { return a.name < b.name; });
  return files;
}

absl::Status WeightFiles::Give(size_t index, ByteSink sink) const {
  const TensorEntry& entry = tensors_[index];
  std::vector<std::byte> block(std::min<uint64_t>(kBlockBytes, entry.bytes()));
  for (uint64_t at = 0; at < entry.bytes(); at += kBlockBytes) {
    const auto part =
        absl::MakeSpan(block).subspan(0, std::min<uint64_t>(kBlockBytes, entry.bytes() - at));
    DT_RETURN_IF_ERROR(folder_.has_value() ? folder_->Read(entry.name, at, part)
                                           : file_->ReadRange(entry, at, part));
    DT_RETURN_IF_ERROR(sink(part));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::vector<std::pair<std::string, std::string>>> WeightFiles::SmallFiles() const {
  std::vector<std::pair<std::string, std::string>> files;
  if (!folder_.has_value()) {
    return files;
  }
  for (const char* name : kSmallFiles) {
    const std::string path = absl::StrCat(path_, "/", name);
    absl::StatusOr<std::string> text = ReadPlainFile(path, kSmallFileBytesMax);
    if (absl::IsNotFound(text.status())) {
      continue;
    }
    DT_RETURN_IF_ERROR(text.status());
    files.emplace_back(name, *std::move(text));
  }
  return files;
}

}  // namespace dtrain::checkpoint
