#include "runtime/plan/data/prepare_corpus.h"

#include <algorithm>
#include <filesystem>
#include <set>
#include <system_error>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/file.h"
#include "base/json.h"
#include "base/status.h"
#include "base/text/utf8.h"
#include "runtime/plan/data/token_file.h"
#include "runtime/plan/stable_hash.h"

namespace dtrain::plan {
namespace {

namespace fs = std::filesystem;

struct Candidate {
  std::string path;
  std::string name;  // Within its folder; what is hashed and sorted.
  uint64_t hash = 0;
  std::string text;
};

bool Wanted(const fs::path& path, const std::vector<std::string>& extensions) {
  return extensions.empty() || std::find(extensions.begin(), extensions.end(),
                                         path.extension().string()) != extensions.end();
}

absl::Status FindIn(const std::string& folder, const PrepareOptions& options,
                    std::vector<Candidate>* found, PrepareReport* report) {
  std::error_code error;
  if (!fs::is_directory(folder, error)) {
    return absl::NotFoundError(absl::StrCat(folder, fs::exists(folder, error)
                                                        ? " is not a folder"
                                                        : " is not there; name files or folders"));
  }
  if (fs::equivalent(folder, options.out, error)) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "--out %s is a source too, so that the next run would read what this one writes; name "
        "another folder, which may be in it",
        options.out));
  }
  error.clear();  // There may be no --out yet.
  auto walk = fs::recursive_directory_iterator(
      folder, fs::directory_options::skip_permission_denied, error);
  for (; !error && walk != fs::recursive_directory_iterator(); walk.increment(error)) {
    std::error_code unread;
    if (walk->is_directory(unread) && fs::equivalent(walk->path(), options.out, unread)) {
      walk.disable_recursion_pending();
      continue;
    }
    unread.clear();
    if (walk->is_symlink(unread) || !walk->is_regular_file(unread) ||
        !Wanted(walk->path(), options.extensions)) {
      continue;
    }
    ++report->files_found;
    const uintmax_t bytes = walk->file_size(unread);
    if (unread || bytes > static_cast<uintmax_t>(options.file_bytes_max)) {
      ++(unread ? report->skipped_unreadable : report->skipped_long);
      continue;
    }
    const std::string name = walk->path().lexically_relative(folder).string();
    found->push_back({walk->path().string(), name, StableHash().Add(name).value(), ""});
  }
  return error ? ErrnoStatus(error.value(), absl::StrCat("cannot list ", folder))
               : absl::OkStatus();
}

// Reads in the order of the hashes, until the limit.
std::vector<Candidate> ReadText(std::vector<Candidate> found, const PrepareOptions& options,
                                PrepareReport* report) {
  std::sort(found.begin(), found.end(), [](const Candidate& a, const Candidate& b) {
    return std::tie(a.hash, a.name, a.path) < std::tie(b.hash, b.name, b.path);
  });
  std::vector<Candidate> taken;
  std::set<std::pair<uint64_t, size_t>> contents;
  int64_t bytes = 0;
  for (size_t i = 0; i < found.size(); ++i) {
    Candidate& file = found[i];
    absl::StatusOr<std::string> text =
        ReadFile(file.path, static_cast<size_t>(options.file_bytes_max));
    if (!text.ok()) {
      ++report->skipped_unreadable;
      continue;
    }
    if (text->empty() || !IsUtf8Text(*text)) {
      ++report->skipped_not_text;
      continue;
    }
    const auto length = static_cast<int64_t>(text->size()) + 1;
    if (bytes + length > options.bytes_max) {
      report->skipped_beyond_limit = static_cast<int64_t>(found.size() - i);
      break;
    }
    if (!contents.insert({StableHash().Add(*text).value(), text->size()}).second) {
      ++report->skipped_equal;
      continue;
    }
    bytes += length;
    file.text = *std::move(text);
    taken.push_back(std::move(file));
  }
  return taken;
}

struct Splits {
  std::vector<Candidate> train;
  std::vector<Candidate> validation;
};

// REQUIRES: `files` is not empty and in the order of the hashes.
Splits Split(std::vector<Candidate> files, int validation_percent) {
  Splits splits;
  if (files.size() == 1) {  // The only file's last tenth validates.
    std::string& text = files[0].text;
    const size_t cut = text.size() - std::min(text.size(), text.size() / 10 + 1);
    Candidate tail = files[0];
    tail.text = text.substr(cut);
    text.resize(cut);
    splits.train.push_back(std::move(files[0]));
    splits.validation.push_back(std::move(tail));
    return splits;
  }
  for (Candidate& file : files) {
    const bool validates = MixBits(file.hash) % 100 < static_cast<uint64_t>(validation_percent);
    (validates ? splits.validation : splits.train).push_back(std::move(file));
  }
  // A handful of files may all fall on one side: move the first across.
  if (splits.validation.empty() || splits.train.empty()) {
    auto& from = splits.validation.empty() ? splits.train : splits.validation;
    auto& to = splits.validation.empty() ? splits.validation : splits.train;
    to.push_back(std::move(from.front()));
    from.erase(from.begin());
  }
  return splits;
}

absl::StatusOr<PrepareReport::Split> WriteSplit(std::vector<Candidate> files,
                                                const std::string& path) {
  std::sort(files.begin(), files.end(), [](const Candidate& a, const Candidate& b) {
    return std::tie(a.name, a.path) < std::tie(b.name, b.path);
  });
  PrepareReport::Split split{path, static_cast<int64_t>(files.size()), 0};
  for (const Candidate& file : files) {
    split.tokens += static_cast<int64_t>(file.text.size()) + 1;
  }
  std::string content = MakeTokenHeader(split.tokens, 256);
  content.reserve(content.size() + 2 * static_cast<size_t>(split.tokens));
  for (const Candidate& file : files) {
    for (const char byte : file.text) {
      content += byte;
      content += '\0';  // High byte of the u16.
    }
    content.append(2, '\0');  // Token 0 ends a document.
  }
  DT_RETURN_IF_ERROR(WriteFileAtomic(path, content));
  return split;
}

absl::Status CheckOptions(const PrepareOptions& options) {
  if (options.out.empty()) {
    return absl::InvalidArgumentError("no output folder is given; give --out FOLDER");
  }
  if (options.validation_percent < 1 || options.validation_percent > 50) {
    return absl::InvalidArgumentError(
        absl::StrFormat("the share of files for validation is %d%%; it must be from 1%% to 50%%",
                        options.validation_percent));
  }
  if (options.bytes_max < 1 || options.bytes_max > kTokensMax || options.file_bytes_max < 1) {
    return absl::InvalidArgumentError(
        absl::StrFormat("the size limits are %d bytes for all text and %d bytes for one file; both "
                        "must be at least 1, and the first below 2 GiB",
                        options.bytes_max, options.file_bytes_max));
  }
  return absl::OkStatus();
}

Json SplitJson(const PrepareReport::Split& split) {
  return Json{{"file", fs::path(split.path).filename().string()},
              {"files", split.files},
              {"tokens", split.tokens}};
}

}  // namespace

bool IsUtf8Text(const std::string& bytes) {
  return bytes.find('\0') == std::string::npos && IsUtf8(bytes);
}

absl::StatusOr<PrepareReport> PrepareCorpus(const PrepareOptions& options) {
  DT_RETURN_IF_ERROR(CheckOptions(options));
  PrepareReport report;
  std::vector<Candidate> found;
  for (const std::string& folder : options.folders) {
    DT_RETURN_IF_ERROR(FindIn(folder, options, &found, &report));
  }
  std::vector<Candidate> files = ReadText(std::move(found), options, &report);
  if (files.empty()) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "no text was found in %d files with a wanted extension: %d are too long, %d are empty or "
        "not UTF-8 text, %d are beyond the size limit, %d cannot be read",
        report.files_found, report.skipped_long, report.skipped_not_text,
        report.skipped_beyond_limit, report.skipped_unreadable));
  }
  Splits splits = Split(std::move(files), options.validation_percent);
  DT_RETURN_IF_ERROR(MakeDirectories(options.out));
  DT_ASSIGN_OR_RETURN(report.train,
                      WriteSplit(std::move(splits.train), options.out + "/train.bin"));
  DT_ASSIGN_OR_RETURN(report.validation,
                      WriteSplit(std::move(splits.validation), options.out + "/val.bin"));
  DT_RETURN_IF_ERROR(WriteCorpusTokenizer(options.out, options.tokenizer));
  const Json manifest{{"format", "llmc"},
                      {"tokenizer", "bytes"},
                      {"vocabulary", 256},
                      {kTokenizerFilesKey, TokenizerFileNames(options.tokenizer)},
                      {"train", SplitJson(report.train)},
                      {"validation", SplitJson(report.validation)}};
  DT_RETURN_IF_ERROR(WriteFileAtomic(options.out + "/corpus.json", DumpJson(manifest, 2) + "\n"));
  return report;
}

std::string PrepareTable(const PrepareReport& report) {
  std::string table = absl::StrFormat("%-12s %8s %12s  %s\n", "split", "files", "tokens", "file");
  const std::pair<const char*, const PrepareReport::Split*> rows[] = {
      {"train", &report.train}, {"validation", &report.validation}};
  for (const auto& [name, split] : rows) {
    absl::StrAppendFormat(&table, "%-12s %8d %12d  %s\n", name, split->files, split->tokens,
                          split->path);
  }
  absl::StrAppendFormat(&table,
                        "files left out: %d not text, %d too long, %d equal to another file, %d "
                        "beyond the size limit, %d not readable\n",
                        report.skipped_not_text, report.skipped_long, report.skipped_equal,
                        report.skipped_beyond_limit, report.skipped_unreadable);
  return table;
}

}  // namespace dtrain::plan
