#include "generate/training_tokenizer.h"

#include <algorithm>
#include <filesystem>
#include <set>
#include <system_error>
#include <utility>

#include "absl/strings/match.h"
#include "base/file.h"
#include "base/json.h"
#include "base/status.h"
#include "runtime/plan/data/remote_address.h"
#include "runtime/plan/data/token_corpus.h"
#include "runtime/plan/data/tokenizer_files.h"
#include "runtime/plan/tokenizer/bytes_tokenizer.h"

namespace {

namespace fs = std::filesystem;
using dtrain::plan::NamedTexts;

// Whether `dtrain data prepare` made bytes in this folder.
bool IsCorpusOfBytes(const std::string& folder) {
  constexpr size_t kBytesMax = 16U << 20;
  const auto text = dtrain::ReadFile(folder + "/corpus.json", kBytesMax);
  const auto json = text.ok() ? dtrain::ParseJson(*text, "corpus.json") : text.status();
  return json.ok() && json->is_object() &&
         json->value("tokenizer", dtrain::Json()) == dtrain::plan::kBytesTokenizer;
}

// Whether a folder of these files is one that Tokenizer::Load reads.
bool HasVocabulary(const NamedTexts& files) {
  return std::any_of(files.begin(), files.end(), [](const auto& file) {
    return file.first == "tokenizer.json" || file.first == "tokenizer.model" ||
           file.first == "tekken.json" || absl::EndsWith(file.first, ".tiktoken");
  });
}

absl::StatusOr<TrainingTokenizer> TokenizerOfCorpus(const std::string& folder) {
  const std::string kept = dtrain::plan::CorpusTokenizerFolder(folder);
  const bool is_bytes = IsCorpusOfBytes(folder);
  TrainingTokenizer tokenizer;
  std::error_code none;
  if (fs::is_directory(kept, none)) {
    DT_ASSIGN_OR_RETURN(tokenizer.files, dtrain::plan::ReadTokenizerFiles(kept));
  } else if (is_bytes) {
    tokenizer.files = dtrain::plan::BytesTokenizerFiles();
  }
  if (!tokenizer.files.empty()) {
    tokenizer.source = is_bytes ? dtrain::plan::kBytesTokenizer : kept;
  }
  return tokenizer;
}

absl::StatusOr<TrainingTokenizer> TokenizerOfData(const dtrain::Config& config) {
  DT_ASSIGN_OR_RETURN(const std::vector<std::string> paths,
                      dtrain::plan::ExpandTokenPaths(config.data_train()));
  std::set<std::string> folders;
  for (const std::string& path : paths) {
    const std::string folder = fs::path(path).parent_path().string();
    if (dtrain::plan::IsRemoteAddress(path) || !folders.insert(folder).second) {
      continue;
    }
    DT_ASSIGN_OR_RETURN(TrainingTokenizer found, TokenizerOfCorpus(folder.empty() ? "." : folder));
    if (!found.files.empty()) {
      return found;
    }
  }
  return TrainingTokenizer();
}

}  // namespace

absl::StatusOr<TrainingTokenizer> TokenizerOfTraining(const dtrain::Config& config,
                                                      const SampleOptions& sample,
                                                      const std::string& pretrained) {
  TrainingTokenizer tokenizer{.source = sample.tokenizer, .files = {}};
  if (sample.tokenizer == dtrain::plan::kBytesTokenizer) {
    tokenizer.files = dtrain::plan::BytesTokenizerFiles();
    return tokenizer;
  }
  if (!sample.tokenizer.empty()) {
    DT_ASSIGN_OR_RETURN(tokenizer.files, dtrain::plan::FilesOfTokenizer(sample.tokenizer));
    return tokenizer;
  }
  if (!pretrained.empty()) {
    DT_ASSIGN_OR_RETURN(tokenizer.files, dtrain::plan::ReadTokenizerFiles(pretrained));
    if (HasVocabulary(tokenizer.files)) {
      tokenizer.source = pretrained;
      return tokenizer;
    }
  }
  return TokenizerOfData(config);
}

absl::StatusOr<TrainingTokenizer> KeepTokenizer(
    std::vector<std::pair<std::string, std::string>> files, const std::string& run_dir) {
  TrainingTokenizer tokenizer;
  if (files == dtrain::plan::BytesTokenizerFiles()) {
    tokenizer.source = dtrain::plan::kBytesTokenizer;
  } else if (!files.empty()) {
    DT_RETURN_IF_ERROR(dtrain::plan::WriteCorpusTokenizer(run_dir, files));
    tokenizer.source = dtrain::plan::CorpusTokenizerFolder(run_dir);
  }
  tokenizer.files = std::move(files);
  return tokenizer;
}
