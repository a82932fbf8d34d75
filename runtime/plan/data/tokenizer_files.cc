#include "runtime/plan/data/tokenizer_files.h"

#include <algorithm>
#include <filesystem>
#include <system_error>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/file.h"
#include "base/status.h"

namespace dtrain::plan {
namespace {

namespace fs = std::filesystem;

constexpr size_t kFileBytesMax = size_t{1} << 28;

// The files of which one is the vocabulary, and those that stand beside it.
constexpr const char* kVocabularies[] = {"tokenizer.json", "tokenizer.model", "vocab.json",
                                         "merges.txt"};
constexpr const char* kSettings[] = {"tokenizer_config.json", "special_tokens_map.json",
                                     "added_tokens.json", "chat_template.jinja",
                                     "generation_config.json"};

absl::Status Add(const std::string& path, const std::string& name, NamedTexts* files) {
  DT_ASSIGN_OR_RETURN(std::string text, ReadFile(path, kFileBytesMax));
  files->emplace_back(name, std::move(text));
  return absl::OkStatus();
}

absl::Status AddIfThere(const std::string& folder, const std::string& name, NamedTexts* files) {
  const std::string path = absl::StrCat(folder, "/", name);
  std::error_code error;
  return fs::is_regular_file(path, error) ? Add(path, name, files) : absl::OkStatus();
}

// In the order of their names; Tokenizer::Load refuses a folder with several.
std::vector<std::string> TiktokenFiles(const std::string& folder) {
  std::vector<std::string> names;
  std::error_code error;
  for (auto walk = fs::directory_iterator(folder, error);
       !error && walk != fs::directory_iterator(); walk.increment(error)) {
    if (walk->path().extension() == ".tiktoken") {
      names.push_back(walk->path().filename().string());
    }
  }
  std::sort(names.begin(), names.end());
  return names;
}

}  // namespace

absl::StatusOr<NamedTexts> ReadTokenizerFiles(const std::string& folder) {
  NamedTexts files;
  for (const char* const name : kVocabularies) {
    DT_RETURN_IF_ERROR(AddIfThere(folder, name, &files));
  }
  if (files.empty()) {
    for (const std::string& name : TiktokenFiles(folder)) {
      DT_RETURN_IF_ERROR(Add(absl::StrCat(folder, "/", name), name, &files));
    }
  }
  for (const char* const name : kSettings) {
    DT_RETURN_IF_ERROR(AddIfThere(folder, name, &files));
  }
  return files;
}

absl::StatusOr<NamedTexts> FilesOfTokenizer(const std::string& path) {
  std::error_code error;
  if (fs::is_directory(path, error)) {
    return ReadTokenizerFiles(path);
  }
  // A file may have any name; a folder is known by those that Tokenizer::Load looks for.
  const fs::path file(path);
  const std::string extension = file.extension().string();
  NamedTexts files;
  DT_RETURN_IF_ERROR(Add(path,
                         extension == ".json"       ? "tokenizer.json"
                         : extension == ".tiktoken" ? file.filename().string()
                                                    : "tokenizer.model",
                         &files));
  const std::string folder = file.parent_path().empty() ? "." : file.parent_path().string();
  for (const char* const name : kSettings) {
    DT_RETURN_IF_ERROR(AddIfThere(folder, name, &files));
  }
  return files;
}

std::string CorpusTokenizerFolder(const std::string& folder) {
  return absl::StrCat(folder, "/corpus.tokenizer");
}

absl::Status WriteCorpusTokenizer(const std::string& folder, const NamedTexts& files) {
  const std::string to = CorpusTokenizerFolder(folder);
  std::error_code error;
  fs::remove_all(to, error);
  if (error) {
    return ErrnoStatus(error.value(), absl::StrCat("cannot remove ", to));
  }
  if (files.empty()) {
    return absl::OkStatus();
  }
  DT_RETURN_IF_ERROR(MakeDirectories(to));
  for (const auto& [name, text] : files) {
    DT_RETURN_IF_ERROR(WriteFileAtomic(absl::StrCat(to, "/", name), text));
  }
  return absl::OkStatus();
}

}  // namespace dtrain::plan
