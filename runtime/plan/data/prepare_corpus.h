// Makes byte-level token files from the text files of some folders: no network, no tokenizer,
// vocabulary 256. The same folders and options give the same bytes on every machine.
//
// Rules (docs/DATA_FORMAT.md repeats them). Files are found recursively, symbolic links are not
// followed. A file counts when its extension is wanted, it is not longer than file_bytes_max, and
// it is valid UTF-8 without a zero byte. A stable hash of the path within its folder orders the
// files: in that order they are taken, until bytes_max, and a second file of equal content is left
// out, so that validation text is not in training. The hash also sends a fixed share of them to
// validation. Within a split files stand in path order, each followed by one zero byte.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "runtime/plan/data/tokenizer_files.h"

namespace dtrain::plan {

struct PrepareOptions {
  std::vector<std::string> folders;
  // Extensions with the dot; "" stands for names without a dot. Empty list: every file.
  std::vector<std::string> extensions;
  std::string out;                     // Folder for train.bin, val.bin and corpus.json; created.
  int64_t bytes_max = 64LL << 20;      // Text taken in all.
  int64_t file_bytes_max = 1LL << 20;  // Longer files are mostly generated tables.
  int validation_percent = 7;          // 1 to 50.
  NamedTexts tokenizer = {};           // Files of the tokenizer, written beside the corpus.
};

struct PrepareReport {
  struct Split {
    std::string path;
    int64_t files = 0;
    int64_t tokens = 0;
  };
  Split train;
  Split validation;
  int64_t files_found = 0;  // Files with a wanted extension.
  int64_t skipped_long = 0;
  int64_t skipped_not_text = 0;
  int64_t skipped_equal = 0;
  int64_t skipped_beyond_limit = 0;
  int64_t skipped_unreadable = 0;
};

// Finds, reads and writes. Each output appears whole or not at all. `out` may be in a folder, and
// is then no source. NotFound: a folder is missing; InvalidArgument: no text was found, `out` is
// one of the folders, or an option is out of range.
absl::StatusOr<PrepareReport> PrepareCorpus(const PrepareOptions& options);

// The table that `dtrain data prepare` prints.
std::string PrepareTable(const PrepareReport& report);

// Valid UTF-8 (no surrogates, no overlong forms) without a zero byte. Pure.
bool IsUtf8Text(const std::string& bytes);

}  // namespace dtrain::plan
