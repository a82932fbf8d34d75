#include "runtime/plan/data/token_corpus.h"

#include <glob.h>
#include <unistd.h>

#include <algorithm>
#include <set>

#include "absl/strings/str_format.h"
#include "base/status.h"
#include "base/system/resource_limits.h"

namespace dtrain::plan {
namespace {

absl::StatusOr<std::vector<std::string>> Glob(const std::string& pattern) {
  glob_t found{};
  const int result = glob(pattern.c_str(), GLOB_NOSORT, nullptr, &found);
  std::vector<std::string> paths(found.gl_pathv, found.gl_pathv + found.gl_pathc);
  globfree(&found);
  if (result != 0 && result != GLOB_NOMATCH) {
    return absl::UnavailableError(absl::StrFormat("cannot list the token files \"%s\"", pattern));
  }
  std::sort(paths.begin(), paths.end());  // By bytes: equal on every host, whatever its locale.
  return paths;
}

}  // namespace

absl::StatusOr<std::vector<std::string>> ExpandTokenPaths(absl::Span<const std::string> patterns) {
  if (patterns.empty()) {
    return absl::InvalidArgumentError(
        "no token file is named; set data.train and data.validation (dtrain data prepare makes "
        "such files)");
  }
  std::vector<std::string> paths;
  std::set<std::string> seen;
  for (const std::string& pattern : patterns) {
    std::vector<std::string> found{pattern};
    if (pattern.find_first_of("*?[") != std::string::npos && access(pattern.c_str(), F_OK) != 0) {
      DT_ASSIGN_OR_RETURN(found, Glob(pattern));
      if (found.empty()) {
        return absl::NotFoundError(
            absl::StrFormat("no token file matches \"%s\" (relative patterns count from the "
                            "working directory)",
                            pattern));
      }
    }
    for (const std::string& path : found) {
      if (seen.insert(path).second) {
        paths.push_back(path);
      }
    }
  }
  return paths;
}

absl::StatusOr<TokenCorpus> TokenCorpus::Open(absl::Span<const std::string> patterns,
                                              TokenFormat format) {
  DT_ASSIGN_OR_RETURN(const std::vector<std::string> paths, ExpandTokenPaths(patterns));
  AllowOpenFiles(paths.size());  // A large corpus may have more shards than the usual limit.
  TokenCorpus corpus;
  const std::string* said_by = nullptr;
  for (const std::string& path : paths) {
    DT_ASSIGN_OR_RETURN(TokenFile file, TokenFile::Open(path, format));
    const int64_t vocabulary = file.header().vocabulary;
    if (vocabulary != 0 && said_by != nullptr && vocabulary != corpus.vocabulary_) {
      return absl::InvalidArgumentError(
          absl::StrFormat("token file %s has the vocabulary %d, %s has %d: they were made by "
                          "different tokenizers; use files of one tokenizer",
                          path, vocabulary, *said_by, corpus.vocabulary_));
    }
    if (vocabulary != 0) {
      corpus.vocabulary_ = vocabulary;
      said_by = &path;
    }
    corpus.files_.push_back(std::move(file));
  }
  return corpus;
}

std::vector<int64_t> TokenCorpus::tokens_per_file() const {
  std::vector<int64_t> tokens;
  for (const TokenFile& file : files_) {
    tokens.push_back(file.tokens());
  }
  return tokens;
}

int64_t TokenCorpus::tokens() const {
  int64_t sum = 0;
  for (const TokenFile& file : files_) {
    sum += file.tokens();
  }
  return sum;
}

absl::Status TokenCorpus::Read(const SampleLocation& sample, int64_t sequence_length,
                               int64_t vocabulary, int64_t* out) const {
  const TokenFile& file = files_[static_cast<size_t>(sample.file)];
  const absl::Span<int64_t> tokens(out, static_cast<size_t>(sequence_length + 1));
  DT_RETURN_IF_ERROR(file.Copy(sample.offset, tokens));
  return vocabulary > 0 ? file.CheckIds(sample.offset, tokens, vocabulary) : absl::OkStatus();
}

}  // namespace dtrain::plan
