// Makes token files of text and of instruction data: what `dtrain data prepare` runs with a
// tokenizer, or for sources other than folders.
//
// Sources are read in order; all cores make tokens of them, a mebibyte of text at a time, and the
// documents are taken in order again. The output depends on the sources and options alone. Memory
// does not grow with the text but for 16 to 32 bytes a document, by which equal ones are found.
// Documents collect in a working folder beside the output; an interrupted run goes on from its
// journal. Output files appear whole, when all is done.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "runtime/plan/data/text/chunk_documents.h"
#include "runtime/plan/data/text/corpus_files.h"
#include "runtime/plan/data/text/prepare_journal.h"
#include "runtime/plan/data/text/text_encoder.h"

namespace dtrain::plan {

struct TextProgress {
  int64_t bytes_done = 0;  // Counted in the stored files.
  int64_t bytes = -1;      // -1: not known.
  int64_t documents = 0;
  int64_t tokens = 0;
  bool resumed = false;
};

struct PrepareTextOptions {
  std::vector<std::string> sources;
  std::vector<std::string> extensions;  // In folders; with the dot. Empty: all.
  std::string out;                      // Folder for the files and corpus.json; created.
  DocumentRules rules;
  CorpusFormat format = CorpusFormat::kLlmc;
  int64_t shard_tokens = (int64_t{1} << 31) - 1;
  int64_t bytes_max = 0;               // Bytes of text; 0: all.
  int64_t file_bytes_max = 1LL << 20;  // The largest text file in a folder that is taken.
  int validation_percent = 7;          // 1 to 50.
  int64_t skip_bad = 0;                // So many bad records are left out; one more is an error.
  int threads = 0;                     // 0: as many as this process may use cores.
  int64_t commit_bytes = 64LL << 20;   // Text between two journals.
  std::function<void(const TextProgress&)> progress;  // May be empty.
};

struct TextReport {
  PrepareCounts counts;
  WrittenSplit train;
  WrittenSplit validation;
  int64_t train_documents = 0;
  int64_t validation_documents = 0;
  std::string first_bad;  // The first bad record of this run that was left out.
};

// NotFound: a source is missing. InvalidArgument: an option out of range, a bad record (file and
// line are named), no text at all, instruction data with fewer than two samples.
absl::StatusOr<TextReport> PrepareText(const PrepareTextOptions& options,
                                       const TextEncoder& encoder);

}  // namespace dtrain::plan
