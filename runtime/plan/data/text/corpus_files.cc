#include "runtime/plan/data/text/corpus_files.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <system_error>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/strip.h"
#include "base/file.h"
#include "base/status.h"
#include "runtime/plan/data/data_file.h"
#include "runtime/plan/data/megatron_index.h"
#include "runtime/plan/data/text/pack_samples.h"
#include "runtime/plan/data/token_file.h"
#include "runtime/plan/data/token_mask.h"

namespace dtrain::plan {
namespace {

constexpr int64_t kBlockBytes = 1 << 20;

// The name of file `index` of a split, of `count`.
std::string FileName(const std::string& name, int64_t index, int64_t count) {
  return count == 1 ? absl::StrCat(name, ".bin") : absl::StrFormat("%s-%05d.bin", name, index);
}

// A new file of the split under its temporary name.
absl::StatusOr<GrowingFile> NewFile(const std::string& file_name, int64_t tokens,
                                    const CorpusFilesOptions& options, WrittenSplit& split) {
  const std::string temporary = absl::StrCat(options.work_folder, "/", file_name, ".new");
  split.files.push_back({temporary, absl::StrCat(options.folder, "/", file_name), tokens});
  return GrowingFile::Open(temporary, 0);
}

absl::Status CopyBytes(const DataFile& from, int64_t begin, int64_t bytes, GrowingFile& into) {
  std::string block(static_cast<size_t>(std::min(bytes, kBlockBytes)), '\0');
  for (int64_t done = 0; done < bytes;) {
    const auto n = static_cast<size_t>(std::min(bytes - done, kBlockBytes));
    DT_RETURN_IF_ERROR(from.ReadAt(begin + done, {block.data(), n}));
    DT_RETURN_IF_ERROR(into.Append(block.data(), n));
    done += static_cast<int64_t>(n);
  }
  return absl::OkStatus();
}

absl::StatusOr<std::vector<int32_t>> ReadLengths(const SpoolRange& range) {
  DT_ASSIGN_OR_RETURN(const DataFile file, DataFile::Open(range.files.lengths(), "lengths"));
  std::vector<int32_t> lengths(static_cast<size_t>(range.documents));
  DT_RETURN_IF_ERROR(file.ReadAt(4 * range.first_document,
                                 {reinterpret_cast<char*>(lengths.data()), 4 * lengths.size()}));
  return lengths;
}

absl::StatusOr<WrittenSplit> WriteLlmc(const SpoolRange& range, const std::string& name,
                                       const CorpusFilesOptions& options) {
  const int width = range.files.bytes_per_token;
  DT_ASSIGN_OR_RETURN(const DataFile from, DataFile::Open(range.files.tokens(), "tokens"));
  const int64_t count =
      std::max<int64_t>(1, (range.tokens + options.shard_tokens - 1) / options.shard_tokens);
  WrittenSplit split;
  for (int64_t index = 0; index < count; ++index) {
    const int64_t begin = index * options.shard_tokens;
    const int64_t tokens = std::min(options.shard_tokens, range.tokens - begin);
    DT_ASSIGN_OR_RETURN(GrowingFile file,
                        NewFile(FileName(name, index, count), tokens, options, split));
    const std::string header = MakeTokenHeader(tokens, options.vocabulary, width);
    DT_RETURN_IF_ERROR(file.Append(header.data(), header.size()));
    DT_RETURN_IF_ERROR(CopyBytes(from, (range.first_token + begin) * width, tokens * width, file));
    DT_RETURN_IF_ERROR(file.Sync());
  }
  split.tokens = range.tokens;
  return split;
}

// One document is one sequence.
absl::Status WriteIndex(const std::vector<int32_t>& lengths, int width, GrowingFile& file) {
  const auto documents = static_cast<int64_t>(lengths.size());
  const std::string header = MakeMegatronHeader({width, documents, documents + 1});
  DT_RETURN_IF_ERROR(file.Append(header.data(), header.size()));
  DT_RETURN_IF_ERROR(file.Append(lengths.data(), 4 * lengths.size()));
  int64_t offset = 0;
  for (const int32_t length : lengths) {
    DT_RETURN_IF_ERROR(file.Append(&offset, sizeof(offset)));
    offset += int64_t{length} * width;
  }
  for (int64_t document = 0; document <= documents; ++document) {
    DT_RETURN_IF_ERROR(file.Append(&document, sizeof(document)));
  }
  return file.Sync();
}

absl::StatusOr<WrittenSplit> WriteMegatron(const SpoolRange& range, const std::string& name,
                                           const CorpusFilesOptions& options) {
  const int width = range.files.bytes_per_token;
  DT_ASSIGN_OR_RETURN(const DataFile from, DataFile::Open(range.files.tokens(), "tokens"));
  DT_ASSIGN_OR_RETURN(std::vector<int32_t> lengths, ReadLengths(range));
  if (lengths.size() == 1) {  // A part of a document that was divided.
    lengths[0] = static_cast<int32_t>(range.tokens);
  }
  WrittenSplit split;
  DT_ASSIGN_OR_RETURN(GrowingFile data,
                      NewFile(absl::StrCat(name, ".bin"), range.tokens, options, split));
  DT_RETURN_IF_ERROR(CopyBytes(from, range.first_token * width, range.tokens * width, data));
  DT_RETURN_IF_ERROR(data.Sync());
  DT_ASSIGN_OR_RETURN(GrowingFile index, NewFile(absl::StrCat(name, ".idx"), 0, options, split));
  DT_RETURN_IF_ERROR(WriteIndex(lengths, width, index));
  split.tokens = range.tokens;
  return split;
}

// Writes rows of whole samples, and their masks.
class RowWriter {
 public:
  RowWriter(DataFile tokens, DataFile mask, const SpoolRange& range,
            const std::vector<int32_t>& lengths, const CorpusFilesOptions& options)
      : tokens_(std::move(tokens)),
        mask_(std::move(mask)),
        range_(range),
        options_(options),
        lengths_(lengths) {
    int64_t begin = range.first_token;
    for (const int32_t length : lengths) {
      begins_.push_back(begin);
      begin += length;
    }
  }

  // Adds a file with `rows`. A row's last target would be the next row's first token, which is no
  // target; one token of padding stands there behind the last row.
  absl::Status Write(const std::string& file_name, absl::Span<const std::vector<uint32_t>> rows,
                     WrittenSplit& split) {
    const int width = range_.files.bytes_per_token;
    const int64_t tokens = static_cast<int64_t>(rows.size()) * options_.row_length + 1;
    DT_ASSIGN_OR_RETURN(GrowingFile ids, NewFile(file_name, tokens, options_, split));
    DT_ASSIGN_OR_RETURN(GrowingFile mask, NewFile(MaskPath(file_name), 0, options_, split));
    trained_ = 0;
    std::string all_ids = MakeTokenHeader(tokens, options_.vocabulary, width);
    DT_RETURN_IF_ERROR(ids.Append(all_ids.data(), all_ids.size()));
    // The header's count of trained tokens is known at the end; it is written anew then.
    std::string header = MakeMaskHeader({tokens, options_.row_length, 0});
    DT_RETURN_IF_ERROR(mask.Append(header.data(), header.size()));
    for (const std::vector<uint32_t>& row : rows) {
      DT_RETURN_IF_ERROR(WriteRow(row, ids, mask, split));
    }
    DT_RETURN_IF_ERROR(Pad(1, ids, mask, split));
    DT_RETURN_IF_ERROR(ids.Sync());
    DT_RETURN_IF_ERROR(mask.Sync());
    header = MakeMaskHeader({tokens, options_.row_length, trained_});
    DT_RETURN_IF_ERROR(Rewrite(mask.path(), header));
    split.tokens += tokens;
    split.trained += trained_;
    split.rows += static_cast<int64_t>(rows.size());
    return absl::OkStatus();
  }

 private:
  absl::Status WriteRow(const std::vector<uint32_t>& row, GrowingFile& ids, GrowingFile& mask,
                        WrittenSplit& split) {
    const int width = range_.files.bytes_per_token;
    int64_t left = options_.row_length;
    for (const uint32_t sample : row) {
      const int64_t length = lengths_[sample];
      const int64_t begin = begins_[sample];
      DT_RETURN_IF_ERROR(CopyBytes(tokens_, begin * width, length * width, ids));
      bits_.resize(static_cast<size_t>(length));
      DT_RETURN_IF_ERROR(mask_.ReadAt(begin, absl::MakeSpan(bits_)));
      DT_RETURN_IF_ERROR(mask.Append(bits_.data(), bits_.size()));
      trained_ += std::count_if(bits_.begin(), bits_.end(),
                                [](char bits) { return (bits & kMaskTrained) != 0; });
      left -= length;
    }
    return Pad(left, ids, mask, split);
  }

  absl::Status Pad(int64_t tokens, GrowingFile& ids, GrowingFile& mask, WrittenSplit& split) {
    for (int64_t i = 0; i < tokens; ++i) {
      const uint8_t bits = i == 0 ? kMaskStart : uint8_t{0};
      DT_RETURN_IF_ERROR(ids.Append(&options_.pad_token,  // The low bytes come first.
                                    static_cast<size_t>(range_.files.bytes_per_token)));
      DT_RETURN_IF_ERROR(mask.Append(&bits, 1));
    }
    split.padding += tokens;
    return absl::OkStatus();
  }

  static absl::Status Rewrite(const std::string& path, const std::string& header) {
    DT_ASSIGN_OR_RETURN(const UniqueFd fd, OpenFile(path, O_WRONLY));
    DT_RETURN_IF_ERROR(Annotate(WriteFully(fd.get(), header.data(), header.size()), path));
    return fsync(fd.get()) == 0 ? absl::OkStatus() : ErrnoStatus(errno, path);
  }

  DataFile tokens_;
  DataFile mask_;
  const SpoolRange& range_;
  const CorpusFilesOptions& options_;
  const std::vector<int32_t>& lengths_;
  std::vector<int64_t> begins_;
  std::string bits_;  // Reused.
  int64_t trained_ = 0;
};

absl::StatusOr<WrittenSplit> WriteRows(const SpoolRange& range, const std::string& name,
                                       const CorpusFilesOptions& options) {
  DT_ASSIGN_OR_RETURN(const std::vector<int32_t> lengths, ReadLengths(range));
  const std::vector<std::vector<uint32_t>> rows = PackSamples(lengths, options.row_length);
  DT_ASSIGN_OR_RETURN(DataFile tokens, DataFile::Open(range.files.tokens(), "tokens"));
  DT_ASSIGN_OR_RETURN(DataFile mask, DataFile::Open(range.files.mask(), "mask"));
  RowWriter writer(std::move(tokens), std::move(mask), range, lengths, options);
  const auto rows_in_all = static_cast<int64_t>(rows.size());
  const int64_t most =
      std::max<int64_t>(1, (options.shard_tokens - 1) / options.row_length);  // Rows of one file.
  const int64_t count = std::max<int64_t>(1, (rows_in_all + most - 1) / most);
  WrittenSplit split;
  for (int64_t index = 0; index < count; ++index) {
    const auto begin = static_cast<size_t>(index * most);
    const auto length = static_cast<size_t>(std::min(most, rows_in_all - index * most));
    DT_RETURN_IF_ERROR(writer.Write(FileName(name, index, count),
                                    absl::MakeConstSpan(rows).subspan(begin, length), split));
  }
  return split;
}

// Whether `file` is one that a preparation of split `name` writes.
bool IsOfSplit(absl::string_view file, absl::string_view name) {
  if (!absl::ConsumePrefix(&file, name)) {
    return false;
  }
  const bool is_shard =
      file.size() > 6 && file[0] == '-' &&
      std::all_of(file.begin() + 1, file.begin() + 6, [](char c) { return c >= '0' && c <= '9'; });
  if (is_shard) {
    file.remove_prefix(6);
  }
  return file == ".bin" || file == ".idx" || file == ".bin.mask";
}

}  // namespace

absl::StatusOr<WrittenSplit> WriteSplitFiles(const SpoolRange& range, const std::string& name,
                                             const CorpusFilesOptions& options) {
  if (options.row_length > 0) {
    return WriteRows(range, name, options);
  }
  return options.format == CorpusFormat::kMegatron ? WriteMegatron(range, name, options)
                                                   : WriteLlmc(range, name, options);
}

absl::Status PublishFiles(const std::vector<WrittenSplit>& splits,
                          const std::vector<std::string>& names, const std::string& folder) {
  // All earlier files go first, so that a crash leaves no tokens of one preparation beside the
  // mask, the shards or the description (corpus.json, which is written last) of another.
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(folder, error)) {
    const std::string file = entry.path().filename().string();
    const std::string path = absl::StrCat(folder, "/", file);
    const bool is_ours = file == "corpus.json" ||
                         std::any_of(names.begin(), names.end(), [&](const std::string& name) {
                           return IsOfSplit(file, name);
                         });
    if (is_ours && unlink(path.c_str()) != 0) {
      return ErrnoStatus(errno, absl::StrCat("cannot remove the earlier ", path));
    }
  }
  DT_RETURN_IF_ERROR(FsyncDirectory(folder));
  // Tokens come last: without them their mask or index is nothing.
  for (const bool tokens : {false, true}) {
    for (const WrittenSplit& split : splits) {
      for (const WrittenFile& file : split.files) {
        if (absl::EndsWith(file.path, ".bin") == tokens &&
            std::rename(file.temporary.c_str(), file.path.c_str()) != 0) {
          return ErrnoStatus(errno, absl::StrCat("cannot rename to ", file.path));
        }
      }
    }
  }
  return FsyncDirectory(folder);
}

}  // namespace dtrain::plan
