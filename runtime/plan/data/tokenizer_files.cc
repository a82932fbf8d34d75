#include "runtime/plan/data/tokenizer_files.h"

#include <algorithm>
#include <filesystem>
#include <iterator>
#include <system_error>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/file.h"
#include "base/json.h"
#include "base/status.h"
#include "base/text/text.h"
#include "runtime/plan/data/data_file.h"
#include "runtime/plan/data/remote_address.h"

namespace dtrain::plan {
namespace {

namespace fs = std::filesystem;

constexpr size_t kFileBytesMax = size_t{1} << 28;
constexpr size_t kManifestBytesMax = size_t{1} << 24;
constexpr size_t kNamesMax = 32;  // In a manifest.
constexpr size_t kNameBytesMax = 128;

// The files of which one is the vocabulary, and those that stand beside it.
constexpr const char* kVocabularies[] = {"tokenizer.json", "tokenizer.model", "vocab.json",
                                         "merges.txt"};
constexpr absl::string_view kTekken = "tekken.json";  // Large: kept where there is no other.
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

// Mistral's tekken.json and tiktoken's files, in the order of their names. Tokenizer::Load refuses
// a folder with several of the latter.
std::vector<std::string> RankFiles(const std::string& folder) {
  std::vector<std::string> names;
  std::error_code error;
  for (auto walk = fs::directory_iterator(folder, error);
       !error && walk != fs::directory_iterator(); walk.increment(error)) {
    if (walk->path().extension() == ".tiktoken" || walk->path().filename().string() == kTekken) {
      names.push_back(walk->path().filename().string());
    }
  }
  std::sort(names.begin(), names.end());
  return names;
}

// Whether it is a file that ReadTokenizerFiles looks for, by a name that a model's folder may have.
bool IsTokenizerFile(const std::string& name) {
  const auto is_it = [&](const char* known) { return name == known; };
  const auto is_plain = [](char c) {
    return absl::ascii_isalnum(static_cast<unsigned char>(c)) || c == '_' || c == '-' || c == '.';
  };
  return std::any_of(std::begin(kVocabularies), std::end(kVocabularies), is_it) ||
         std::any_of(std::begin(kSettings), std::end(kSettings), is_it) || name == kTekken ||
         (absl::EndsWith(name, ".tiktoken") && name[0] != '.' && name[0] != '-' &&
          name.size() <= kNameBytesMax && std::all_of(name.begin(), name.end(), is_plain));
}

absl::StatusOr<std::string> WholeFile(const std::string& address, size_t bytes_max,
                                      DataStore* store) {
  DT_ASSIGN_OR_RETURN(const DataFile file,
                      DataFile::Open(address, "tokenizer of the corpus", store));
  if (file.bytes() > static_cast<int64_t>(bytes_max)) {
    return file.Bad(absl::StrFormat("it has %d bytes; want at most %d", file.bytes(), bytes_max));
  }
  return file.Head(file.bytes());
}

// The names in a corpus.json; one of an older version has none.
absl::StatusOr<std::vector<std::string>> NamesIn(const std::string& text,
                                                 const std::string& address) {
  DT_ASSIGN_OR_RETURN(const Json manifest, ParseJson(text, address));
  const Json listed =
      manifest.is_object() ? manifest.value(kTokenizerFilesKey, Json::array()) : Json::array();
  if (listed.size() > kNamesMax) {
    return absl::InvalidArgumentError(absl::StrFormat("%s: %s has %d names; want at most %d",
                                                      address, kTokenizerFilesKey, listed.size(),
                                                      kNamesMax));
  }
  std::vector<std::string> names;
  for (const Json& item : listed) {
    const std::string name = item.is_string() ? item.get<std::string>() : "";
    const bool is_known = listed.is_array() && IsTokenizerFile(name);
    if (!is_known || std::find(names.begin(), names.end(), name) != names.end()) {
      return absl::InvalidArgumentError(
          absl::StrFormat("%s: %s names %s, which is %s", address, kTokenizerFilesKey,
                          Printable(item.dump().substr(0, 80)),
                          is_known ? "there twice" : "no file of a tokenizer"));
    }
    names.push_back(name);
  }
  return names;
}

}  // namespace

absl::StatusOr<NamedTexts> ReadTokenizerFiles(const std::string& folder) {
  NamedTexts files;
  for (const char* const name : kVocabularies) {
    DT_RETURN_IF_ERROR(AddIfThere(folder, name, &files));
  }
  if (files.empty()) {
    for (const std::string& name : RankFiles(folder)) {
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
  const bool is_tekken = absl::StrContains(file.filename().string(), "tekken");
  NamedTexts files;
  DT_RETURN_IF_ERROR(Add(path,
                         extension == ".json"       ? (is_tekken ? "tekken.json" : "tokenizer.json")
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

Json TokenizerFileNames(const NamedTexts& files) {
  Json names = Json::array();
  for (const auto& file : files) {
    names.push_back(file.first);
  }
  return names;
}

std::string CorpusFolderOf(const std::string& token_path) {
  const size_t slash = token_path.rfind('/');
  return slash == std::string::npos ? "." : slash == 0 ? "/" : token_path.substr(0, slash);
}

absl::StatusOr<NamedTexts> ReadCorpusTokenizer(const std::string& folder, DataStore* store) {
  const std::string kept = CorpusTokenizerFolder(folder);
  NamedTexts files;
  if (!IsRemoteAddress(folder)) {
    std::error_code none;
    if (!fs::is_directory(kept, none)) {
      return files;
    }
    return ReadTokenizerFiles(kept);
  }
  const std::string manifest = absl::StrCat(folder, "/corpus.json");
  const absl::StatusOr<std::string> text = WholeFile(manifest, kManifestBytesMax, store);
  if (absl::IsNotFound(text.status())) {
    return files;
  }
  DT_RETURN_IF_ERROR(text.status());
  DT_ASSIGN_OR_RETURN(const std::vector<std::string> names, NamesIn(*text, manifest));
  size_t left = kFileBytesMax;  // For all of them.
  for (const std::string& name : names) {
    DT_ASSIGN_OR_RETURN(std::string content, WholeFile(absl::StrCat(kept, "/", name), left, store));
    left -= content.size();
    files.emplace_back(name, std::move(content));
  }
  return files;
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
