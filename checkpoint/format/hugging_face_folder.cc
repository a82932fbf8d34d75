#include "checkpoint/format/hugging_face_folder.h"

#include <sys/stat.h>

#include <memory>
#include <set>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "checkpoint/storage/plain_file.h"

namespace dtrain::checkpoint {
namespace {

constexpr char kSingle[] = "model.safetensors";
constexpr char kIndex[] = "model.safetensors.index.json";
constexpr size_t kShardsMax = 10000;

bool IsDirectory(const std::string& path) {
  struct stat info {};
  return stat(path.c_str(), &info) == 0 && S_ISDIR(info.st_mode);
}

bool Exists(const std::string& path) {
  struct stat info {};
  return stat(path.c_str(), &info) == 0;
}

// Describes the folder's content, so that the message can say what to do.
std::string WhatIsThere(const std::string& directory) {
  for (const char* name : {"pytorch_model.bin", "pytorch_model.bin.index.json"}) {
    if (Exists(absl::StrCat(directory, "/", name))) {
      return absl::StrCat("; it has ", name,
                          ", which can hold code and is not read: save it as safetensors with "
                          "transformers' save_pretrained first");
    }
  }
  return "";
}

bool IsFileName(const std::string& name) {
  return absl::EndsWith(name, ".safetensors") && name.find('/') == std::string::npos &&
         name.find('\0') == std::string::npos && name[0] != '.';
}

}  // namespace

absl::Status HuggingFaceFolder::AddFile(const std::string& name) {
  const std::string path = absl::StrCat(directory_, "/", name);
  DT_ASSIGN_OR_RETURN(auto file, OpenPlainFile(path));
  DT_ASSIGN_OR_RETURN(
      SafetensorsReader reader,
      SafetensorsReader::Open(std::move(file), path, kModelHeaderBytesMax - header_bytes_));
  header_bytes_ += reader.header().data_begin;
  if (tensors_.size() + reader.header().tensors.size() > kSafetensorsTensorsMax) {
    return absl::InvalidArgumentError(absl::StrCat(
        path, ": too many tensors in the folder: ", kSafetensorsTensorsMax, " are allowed"));
  }
  files_.push_back(std::make_unique<SafetensorsReader>(std::move(reader)));
  for (const TensorEntry& entry : files_.back()->header().tensors) {
    if (!tensors_.emplace(entry.name, &entry).second) {
      return absl::InvalidArgumentError(absl::StrCat(directory_, ": tensor ", entry.name,
                                                     " is in two files, one of them ", name));
    }
    file_of_[entry.name] = files_.size() - 1;
  }
  return absl::OkStatus();
}

absl::Status HuggingFaceFolder::OpenShards(const std::string& index_name, const std::string& text) {
  DT_ASSIGN_OR_RETURN(const Json index, ParseJson(text, index_name));
  const auto map = index.is_object() ? index.find("weight_map") : index.end();
  if (!index.is_object() || map == index.end() || !map->is_object()) {
    return absl::InvalidArgumentError(
        absl::StrCat(index_name, " has no object \"weight_map\" of tensors and their files"));
  }
  std::set<std::string> names;
  for (const auto& [tensor, file] : map->items()) {
    if (!file.is_string() || !IsFileName(file.get<std::string>())) {
      return absl::InvalidArgumentError(
          absl::StrCat(index_name, ": tensor ", tensor, " is said to be in ", file.dump(),
                       "; allowed: the name of a .safetensors file of the same folder"));
    }
    names.insert(file.get<std::string>());
    if (names.size() > kShardsMax) {
      return absl::InvalidArgumentError(
          absl::StrCat(index_name, " names more than ", kShardsMax, " files"));
    }
  }
  std::map<std::string, size_t> number;
  for (const std::string& name : names) {
    DT_RETURN_IF_ERROR(Annotate(AddFile(name), absl::StrCat("a shard of ", index_name)));
    number[name] = files_.size() - 1;
  }
  for (const auto& [tensor, file] : map->items()) {
    const auto found = file_of_.find(tensor);
    if (found == file_of_.end() || found->second != number[file.get<std::string>()]) {
      return absl::InvalidArgumentError(absl::StrCat(index_name, ": tensor ", tensor, " is not in ",
                                                     file.get<std::string>(), ", which it names"));
    }
  }
  for (const auto& [tensor, file] : file_of_) {
    if (!map->contains(std::string(tensor))) {
      return absl::InvalidArgumentError(
          absl::StrCat(index_name, " does not name tensor ", tensor, ", which a shard holds"));
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<HuggingFaceFolder> HuggingFaceFolder::Open(const std::string& directory) {
  HuggingFaceFolder folder;
  folder.directory_ = directory;
  if (!IsDirectory(directory)) {
    return absl::NotFoundError(absl::StrCat(
        directory, " is not a folder; a model folder holds config.json and model.safetensors"));
  }
  const std::string index = absl::StrCat(directory, "/", kIndex);
  if (Exists(absl::StrCat(directory, "/", kSingle))) {
    DT_RETURN_IF_ERROR(folder.AddFile(kSingle));
  } else if (Exists(index)) {
    DT_ASSIGN_OR_RETURN(const std::string text, ReadPlainFile(index, kModelJsonBytesMax));
    DT_RETURN_IF_ERROR(folder.OpenShards(index, text));
  } else {
    return absl::NotFoundError(absl::StrCat(directory, " holds neither ", kSingle, " nor ", kIndex,
                                            WhatIsThere(directory)));
  }
  return folder;
}

absl::Status HuggingFaceFolder::Read(const std::string& name, uint64_t offset,
                                     absl::Span<std::byte> into) const {
  const auto found = file_of_.find(name);
  if (found == file_of_.end()) {
    return absl::NotFoundError(absl::StrCat(directory_, " holds no tensor ", name));
  }
  return files_[found->second]->ReadRange(*tensors_.at(name), offset, into);
}

absl::StatusOr<Json> ReadModelJson(const std::string& path) {
  const std::string file = IsDirectory(path) ? absl::StrCat(path, "/config.json") : path;
  DT_ASSIGN_OR_RETURN(const std::string text, ReadPlainFile(file, kModelJsonBytesMax));
  DT_ASSIGN_OR_RETURN(Json json, ParseJson(text, file));
  return json;
}

}  // namespace dtrain::checkpoint
