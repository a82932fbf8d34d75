#include "runtime/plan/data/token_corpus.h"

#include <glob.h>
#include <unistd.h>

#include <algorithm>
#include <set>
#include <utility>

#include "absl/strings/str_format.h"
#include "base/file.h"
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

// Opens the files at addresses, and their masks if there are any, several at a time.
void LookAhead(absl::Span<const std::string> paths, DataStore* store) {
  std::vector<std::string> addresses;
  for (const std::string& path : paths) {
    if (IsRemoteAddress(path)) {
      addresses.push_back(path);
      if (MayHaveMask(path)) {
        addresses.push_back(MaskPath(path));
      }
    }
  }
  if (store != nullptr && !addresses.empty()) {
    store->OpenAhead(addresses);
  }
}

}  // namespace

absl::StatusOr<std::vector<std::string>> ExpandTokenPaths(absl::Span<const std::string> patterns,
                                                          DataStore* store) {
  if (patterns.empty()) {
    return absl::InvalidArgumentError(
        "no token file is named; set data.train and data.validation (dtrain data prepare makes "
        "such files)");
  }
  std::vector<std::string> paths;
  std::set<std::string> seen;
  for (const std::string& pattern : patterns) {
    std::vector<std::string> found{pattern};
    if (IsRemoteAddress(pattern)) {
      if (store != nullptr) {
        DT_ASSIGN_OR_RETURN(found, store->Expand(pattern));
      }
    } else if (pattern.find_first_of("*?[") != std::string::npos &&
               access(pattern.c_str(), F_OK) != 0) {
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
  const CorpusPart part{{patterns.begin(), patterns.end()}, 1};
  return Open(absl::Span<const CorpusPart>(&part, 1), format);
}

absl::StatusOr<TokenCorpus> TokenCorpus::Open(absl::Span<const CorpusPart> parts,
                                              TokenFormat format, DataStore* store) {
  TokenCorpus corpus;
  for (const CorpusPart& part : parts) {
    DT_RETURN_IF_ERROR(corpus.Add(part, format, store));
  }
  return corpus;
}

absl::Status TokenCorpus::Add(const CorpusPart& part, TokenFormat format, DataStore* store) {
  DT_ASSIGN_OR_RETURN(const std::vector<std::string> paths, ExpandTokenPaths(part.patterns, store));
  LookAhead(paths, store);
  // A large corpus may have more shards than the usual limit, and a mask beside each.
  const auto masks = std::count_if(paths.begin(), paths.end(), [](const std::string& path) {
    return FileExists(MaskPath(path));
  });
  AllowOpenFiles(paths.size() + static_cast<size_t>(masks));
  std::set<std::string> opened;  // A pattern may name both of Megatron's files.
  const size_t files_before = files_.size();
  for (const std::string& path : paths) {
    DT_ASSIGN_OR_RETURN(TokenFile file, TokenFile::Open(path, format, store));
    if (!opened.insert(file.path()).second) {
      continue;
    }
    const int64_t vocabulary = file.header().vocabulary;
    if (vocabulary != 0 && vocabulary_ != 0 && vocabulary != vocabulary_) {
      return absl::InvalidArgumentError(
          absl::StrFormat("token file %s has the vocabulary %d, %s has %d: they were made by "
                          "different tokenizers; use files of one tokenizer",
                          path, vocabulary, files_[named_].path(), vocabulary_));
    }
    if (vocabulary != 0) {
      vocabulary_ = vocabulary;
      named_ = files_.size();
    }
    DT_ASSIGN_OR_RETURN(std::optional<MaskFile> mask,
                        MaskFile::OpenFor(file.path(), file.tokens(), store));
    files_.push_back(std::move(file));
    masks_.push_back(std::move(mask));
  }
  parts_.push_back({files_.size() - files_before, part.weight});
  return absl::OkStatus();
}

std::vector<SamplerPart> TokenCorpus::parts() const {
  std::vector<SamplerPart> parts;
  size_t file = 0;
  for (const Part& part : parts_) {
    parts.push_back({{}, part.weight});
    for (const size_t end = file + part.files; file < end; ++file) {
      parts.back().tokens_per_file.push_back(files_[file].tokens());
    }
  }
  return parts;
}

bool TokenCorpus::has_masks() const {
  return std::any_of(masks_.begin(), masks_.end(),
                     [](const auto& mask) { return mask.has_value(); });
}

absl::Status TokenCorpus::ReadMask(const SampleLocation& sample, int64_t sequence_length,
                                   uint8_t* out) const {
  return masks_[static_cast<size_t>(sample.file)]->Copy(
      sample.offset, {out, static_cast<size_t>(sequence_length + 1)});
}

bool TokenCorpus::WillRead(const SampleLocation& sample, int64_t sequence_length) const {
  const auto file = static_cast<size_t>(sample.file);
  return files_[file].WillRead(sample.offset, sequence_length + 1) &&
         (!masks_[file].has_value() || masks_[file]->WillRead(sample.offset, sequence_length + 1));
}

absl::Status TokenCorpus::CheckRowLength(int64_t sequence_length) const {
  for (const auto& mask : masks_) {
    if (mask.has_value() && mask->header().row_length != 0 &&
        mask->header().row_length != sequence_length) {
      return absl::InvalidArgumentError(absl::StrFormat(
          "%s has samples packed into rows of %d tokens, but data.sequence_length is %d; set it to "
          "%d, or prepare the data with --sequence-length %d",
          mask->path(), mask->header().row_length, sequence_length, mask->header().row_length,
          sequence_length));
    }
  }
  return absl::OkStatus();
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
  return files_[static_cast<size_t>(sample.file)].Copy(
      sample.offset, {out, static_cast<size_t>(sequence_length + 1)}, vocabulary);
}

}  // namespace dtrain::plan
