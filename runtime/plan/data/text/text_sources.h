// The files that a corpus is made from, and their contents in pieces of about a mebibyte.
//
// A source is one document (a text file) or has one on each line (JSONL) or row (Parquet). The name
// tells which: .jsonl, .ndjson and .json, also with .gz or .zst behind it, have lines, and .parquet
// has rows; so has a named file that begins as Parquet does. A .json file of a folder with "{"
// alone on its first line is a text, such as a program's settings. In standard input, and so in no
// other, the first character tells it: "{" begins JSONL. Not thread-safe.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "runtime/plan/data/row_columns.h"
#include "runtime/plan/data/text/byte_source.h"

namespace dtrain::plan {

struct TextSource {
  std::string path;        // "-": standard input.
  std::string name;        // Below its folder; its path if it was named itself.
  bool has_lines = false;  // JSONL, or rows of a table as such lines.
  bool from_folder = false;
  int64_t bytes = -1;  // -1: not known.
  int64_t modified_ns = 0;
};

struct FoundSources {
  std::vector<TextSource> sources;
  int64_t too_long = 0;    // Text files of folders that were left out.
  int64_t unreadable = 0;  // The same, and links whose file is gone.
};

struct FindOptions {
  std::vector<std::string> extensions;  // In folders; with the dot. Empty: all.
  int64_t file_bytes_max = 1LL << 20;   // The largest text file in a folder that is taken.
  std::string out;  // The folder of the output, which is no source when it is in one. May be "".
};

// Files as they are named, and the files of folders in the order of their paths below them, at any
// depth. In folders, symbolic links to files are followed unless they lead to a file that is found
// there anyway, also by an earlier link; links to folders, hidden files and folders, and what Spark
// and writers of Parquet leave beside their files (_SUCCESS, _metadata) are not sources. NotFound:
// a path does not exist.
// InvalidArgument: standard input is named twice, or a source is the output's folder.
absl::StatusOr<FoundSources> FindSources(const std::vector<std::string>& paths,
                                         const FindOptions& options);

// Documents that follow each other in a source.
struct TextChunk {
  size_t source = 0;
  bool has_lines = false;
  int64_t first_record = 0;  // Its number in the source: for lines, the line before it.
  int64_t records = 0;       // Lines, blank ones too; 1 for a text.
  std::string bytes;
  bool has_rows = false;    // The lines are rows of a table.
  bool is_no_text = false;  // A file of a folder that its first bytes tell; it was not read.
};

// The place of a line or row, counted from 1, in messages: "a.jsonl:7", "a.parquet, row 7". For 0,
// which is a whole text, its source alone.
std::string RecordPlace(const std::string& source, const TextChunk& chunk, int64_t record);

class ChunkReader {
 public:
  static constexpr size_t kChunkBytes = 1 << 20;

  // Begins at `record` of `source`. Of tables, the rows with these columns are read. REQUIRES:
  // `sources` outlives this.
  ChunkReader(const std::vector<TextSource>& sources, size_t source, int64_t record,
              RowColumns columns = {})
      : sources_(sources), source_(source), skip_(record), columns_(std::move(columns)) {}

  // The next chunk; nothing at the end of the last source. The errors of ByteSource, and
  // InvalidArgument for a document that is too long, which is named.
  absl::StatusOr<std::optional<TextChunk>> Next();
  // Leaves out what is left of the source of an error. The next chunk is of source `source()`.
  void SkipSource() { CloseSource(); }
  size_t source() const { return source_; }
  // Bytes of all files that have been read so far, in their stored form.
  int64_t bytes_consumed() const {
    return bytes_before_ + (bytes_ != nullptr ? bytes_->bytes_consumed() : 0);
  }

 private:
  absl::Status OpenSource();
  // Closes a file that is no text; its chunk, or nothing if that was given before.
  std::optional<TextChunk> LeaveOutFile();
  // Reads on until `carry_` has at least a chunk or the source has ended.
  absl::Status Fill();
  absl::Status SkipLines();
  absl::StatusOr<TextChunk> TakeText();
  absl::StatusOr<TextChunk> TakeLines();
  void CloseSource();

  const std::vector<TextSource>& sources_;
  size_t source_;
  int64_t skip_;  // Records of the source that come before the first chunk.
  const RowColumns columns_;
  int64_t record_ = 0;  // The number of the source's next record.
  std::unique_ptr<ByteSource> bytes_;
  std::string carry_;  // What was read and not yet given.
  bool has_lines_ = false;
  bool at_end_ = false;  // Whether the source has ended.
  int64_t bytes_before_ = 0;
};

}  // namespace dtrain::plan
