#include "runtime/plan/data/text/text_sources.h"

#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <iterator>
#include <map>
#include <set>
#include <system_error>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/strip.h"
#include "base/status.h"

namespace dtrain::plan {
namespace {

namespace fs = std::filesystem;

// "a.jsonl.gz" -> "a.jsonl".
absl::string_view WithoutCompression(absl::string_view name) {
  for (const absl::string_view ending : {".gz", ".zst"}) {
    if (absl::EndsWith(name, ending)) {
      return name.substr(0, name.size() - ending.size());
    }
  }
  return name;
}

constexpr absl::string_view kParquetEnding(".parquet");

// Whether a file or folder below a source is there for programs: hidden, or one of those that Spark
// and writers of Parquet leave beside the files with the text.
bool IsForPrograms(const std::string& name) {
  constexpr absl::string_view kNames[] = {"_SUCCESS",   "_metadata",  "_common_metadata",
                                          "_delta_log", "_temporary", "_spark_metadata"};
  return absl::StartsWith(name, ".") ||
         std::find(std::begin(kNames), std::end(kNames), name) != std::end(kNames);
}

bool HasExtension(const fs::path& path, const std::vector<std::string>& extensions) {
  const std::string extension =
      fs::path(std::string(WithoutCompression(path.string()))).extension().string();
  return extensions.empty() ||
         std::find(extensions.begin(), extensions.end(), extension) != extensions.end();
}

// Whether a file is found below `folder` by its own name. REQUIRES: both are canonical.
bool IsFoundBelow(const fs::path& folder, const fs::path& file,
                  const std::vector<std::string>& extensions) {
  const fs::path below = file.lexically_relative(folder);  // Begins with ".." if it is outside.
  return !below.empty() && HasExtension(below, extensions) &&
         std::none_of(below.begin(), below.end(),
                      [](const fs::path& part) { return IsForPrograms(part.string()); });
}

bool HasLines(absl::string_view name) {
  const absl::string_view plain = WithoutCompression(name);
  return absl::EndsWith(plain, ".jsonl") || absl::EndsWith(plain, ".ndjson") ||
         absl::EndsWith(plain, ".json") || absl::EndsWith(name, kParquetEnding);
}

// A text from its first character on, behind blanks and the mark of UTF-8 that some programs write.
absl::string_view FromFirstCharacter(absl::string_view text) {
  absl::ConsumePrefix(&text, "\xEF\xBB\xBF");
  return absl::StripLeadingAsciiWhitespace(text);
}

// Whether a text begins with the first line of an object that is written over several, as the
// settings of programs are. No line of JSONL is so.
bool IsSpreadObject(absl::string_view text) {
  const absl::string_view begun = FromFirstCharacter(text);
  return absl::StripAsciiWhitespace(begun.substr(0, begun.find('\n'))) == "{";
}

absl::StatusOr<TextSource> NamedFile(const std::string& path) {
  struct stat info {};
  if (stat(path.c_str(), &info) != 0) {
    return ErrnoStatus(errno, path);
  }
  TextSource source{path, path, HasLines(path)};
  if (S_ISREG(info.st_mode)) {
    source.bytes = static_cast<int64_t>(info.st_size);
  }
  source.modified_ns = int64_t{info.st_mtim.tv_sec} * 1'000'000'000 + info.st_mtim.tv_nsec;
  return source;
}

absl::Status AddFolder(const std::string& folder, const FindOptions& options, FoundSources& found) {
  std::error_code error;
  const fs::path whole = fs::canonical(folder, error);
  if (error) {
    return ErrnoStatus(error.value(), absl::StrCat("cannot list ", folder));
  }
  auto walk = fs::recursive_directory_iterator(
      folder, fs::directory_options::skip_permission_denied, error);
  std::vector<TextSource> below;
  std::map<std::string, std::string> links;  // The files to which sources that are links lead.
  for (; !error && walk != fs::recursive_directory_iterator(); walk.increment(error)) {
    std::error_code unread;
    if (IsForPrograms(walk->path().filename().string()) ||
        (!options.out.empty() && walk->is_directory(unread) &&
         fs::equivalent(walk->path(), options.out, unread))) {
      walk.disable_recursion_pending();
      continue;
    }
    if (!HasExtension(walk->path(), options.extensions)) {
      continue;
    }
    const bool is_link = walk->is_symlink(unread);
    if (!walk->is_regular_file(unread)) {
      found.unreadable += is_link && !fs::exists(walk->path(), unread) ? 1 : 0;
      continue;
    }
    if (is_link) {
      const fs::path file = fs::canonical(walk->path(), unread);
      if (IsFoundBelow(whole, file, options.extensions)) {
        continue;
      }
      links[walk->path().string()] = file.string();
    }
    absl::StatusOr<TextSource> source = NamedFile(walk->path().string());
    if (!source.ok()) {
      ++found.unreadable;
      continue;
    }
    if (!source->has_lines && source->bytes > options.file_bytes_max) {
      ++found.too_long;
      continue;
    }
    source->name = walk->path().lexically_relative(folder).string();
    source->from_folder = true;
    below.push_back(*std::move(source));
  }
  if (error) {
    return ErrnoStatus(error.value(), absl::StrCat("cannot list ", folder));
  }
  std::sort(below.begin(), below.end(),
            [](const TextSource& a, const TextSource& b) { return a.name < b.name; });
  std::set<std::string> linked;
  for (TextSource& source : below) {
    const auto link = links.find(source.path);
    if (link == links.end() || linked.insert(link->second).second) {  // Each file once.
      found.sources.push_back(std::move(source));
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<FoundSources> FindSources(const std::vector<std::string>& paths,
                                         const FindOptions& options) {
  FoundSources found;
  bool has_input = false;
  for (const std::string& path : paths) {
    std::error_code unknown;
    if (path == kStandardInput) {
      if (std::exchange(has_input, true)) {
        return absl::InvalidArgumentError("standard input (-) is named twice; it has one end");
      }
      found.sources.push_back({path, "standard input"});
    } else if (fs::is_directory(path, unknown)) {
      if (!options.out.empty() && fs::equivalent(path, options.out, unknown)) {
        return absl::InvalidArgumentError(absl::StrFormat(
            "--out %s is a source too, so that the next run would read what this one writes; name "
            "another folder, which may be in it",
            options.out));
      }
      DT_RETURN_IF_ERROR(AddFolder(path, options, found));
    } else {
      DT_ASSIGN_OR_RETURN(TextSource source, NamedFile(path));
      found.sources.push_back(std::move(source));
    }
  }
  return found;
}

std::string RecordPlace(const std::string& source, const TextChunk& chunk, int64_t record) {
  if (record == 0) {
    return source;
  }
  return absl::StrCat(source, chunk.has_rows ? ", row " : ":", record);
}

absl::StatusOr<std::optional<TextChunk>> ChunkReader::Next() {
  while (source_ < sources_.size()) {
    if (bytes_ == nullptr) {
      const absl::Status opened = OpenSource();
      if (absl::IsUnimplemented(opened) && sources_[source_].from_folder) {
        if (std::optional<TextChunk> left_out = LeaveOutFile()) {
          return left_out;
        }
        continue;
      }
      DT_RETURN_IF_ERROR(opened);
      if (has_lines_) {
        DT_RETURN_IF_ERROR(SkipLines());
      } else if (skip_ > 0) {  // Its one document is done.
        CloseSource();
        continue;
      }
    }
    DT_RETURN_IF_ERROR(Fill());
    if (carry_.empty()) {
      CloseSource();
      continue;
    }
    DT_ASSIGN_OR_RETURN(TextChunk chunk, has_lines_ ? TakeLines() : TakeText());
    return chunk;
  }
  return std::nullopt;
}

absl::Status ChunkReader::OpenSource() {
  const TextSource& source = sources_[source_];
  DT_ASSIGN_OR_RETURN(bytes_, ByteSource::Open(source.path, columns_));
  at_end_ = false;
  record_ = bytes_->SkipLines(skip_);
  has_lines_ = source.has_lines || bytes_->has_rows();
  if (absl::EndsWith(source.path, kParquetEnding) && !bytes_->has_rows()) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "%s is no Parquet file, as its name says: it does not begin with PAR1", source.path));
  }
  if (source.from_folder && absl::EndsWith(WithoutCompression(source.name), ".json")) {
    DT_RETURN_IF_ERROR(Fill());
    has_lines_ = !IsSpreadObject(carry_);
  }
  if (source.path == kStandardInput) {
    DT_RETURN_IF_ERROR(Fill());
    has_lines_ = absl::StartsWith(FromFirstCharacter(carry_), "{");
  }
  return absl::OkStatus();
}

std::optional<TextChunk> ChunkReader::LeaveOutFile() {
  TextChunk chunk{source_, false, 0, 1, ""};
  chunk.is_no_text = true;
  const bool was_given = skip_ > 0;
  CloseSource();
  return was_given ? std::nullopt : std::optional<TextChunk>(std::move(chunk));
}

void ChunkReader::CloseSource() {
  bytes_before_ += bytes_ != nullptr ? bytes_->bytes_consumed() : 0;
  bytes_.reset();
  carry_.clear();
  skip_ = 0;
  ++source_;
}

absl::Status ChunkReader::Fill() {
  while (!at_end_ && carry_.size() < kChunkBytes) {
    const size_t before = carry_.size();
    carry_.resize(kChunkBytes);
    const auto n = bytes_->Read({carry_.data() + before, kChunkBytes - before});
    carry_.resize(before + (n.ok() ? *n : 0));
    DT_RETURN_IF_ERROR(n.status());
    at_end_ = carry_.size() < kChunkBytes;
  }
  return absl::OkStatus();
}

absl::Status ChunkReader::SkipLines() {
  while (record_ < skip_) {
    DT_RETURN_IF_ERROR(Fill());
    const size_t end = carry_.find('\n');
    if (end == std::string::npos && at_end_) {
      carry_.clear();  // The last line has no end and was done.
      return absl::OkStatus();
    }
    size_t begin = 0;
    for (size_t next = end; next != std::string::npos && record_ < skip_;
         next = carry_.find('\n', begin)) {
      begin = next + 1;
      ++record_;
    }
    carry_.erase(0, begin == 0 ? carry_.size() : begin);
  }
  return absl::OkStatus();
}

absl::StatusOr<TextChunk> ChunkReader::TakeText() {
  TextChunk chunk{source_, false, 0, 1, std::move(carry_)};
  carry_.clear();
  while (!at_end_) {
    DT_RETURN_IF_ERROR(Fill());
    chunk.bytes += carry_;
    carry_.clear();
    if (static_cast<int64_t>(chunk.bytes.size()) > kDocumentBytesMax) {
      return absl::InvalidArgumentError(absl::StrFormat(
          "%s is a text of more than %d bytes, the most for one document; cut it into documents, "
          "for example as JSONL",
          sources_[source_].path, kDocumentBytesMax));
    }
  }
  return chunk;
}

absl::StatusOr<TextChunk> ChunkReader::TakeLines() {
  TextChunk chunk{source_, true, record_, 0, "", bytes_->has_rows()};
  size_t end = carry_.rfind('\n');
  while (end == std::string::npos && !at_end_) {  // A line that is longer than a chunk.
    chunk.bytes += carry_;
    carry_.clear();
    if (static_cast<int64_t>(chunk.bytes.size()) > kDocumentBytesMax) {
      return absl::InvalidArgumentError(absl::StrFormat(
          "%s:%d: the line has more than %d bytes, the most for one document; is it JSONL, with "
          "one object on each line?",
          sources_[source_].path, record_ + 1, kDocumentBytesMax));
    }
    DT_RETURN_IF_ERROR(Fill());
    end = carry_.find('\n');
  }
  const size_t length = end == std::string::npos ? carry_.size() : end + 1;
  chunk.bytes.append(carry_, 0, length);
  carry_.erase(0, length);
  chunk.records = std::count(chunk.bytes.begin(), chunk.bytes.end(), '\n') +
                  (chunk.bytes.back() == '\n' ? 0 : 1);
  record_ += chunk.records;
  return chunk;
}

}  // namespace dtrain::plan
