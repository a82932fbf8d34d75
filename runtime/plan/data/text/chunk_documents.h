// Makes the documents of a chunk of text: the part of a preparation that runs on all cores. Pure;
// thread-safe.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "runtime/plan/data/row_columns.h"
#include "runtime/plan/data/text/chat_template.h"
#include "runtime/plan/data/text/records.h"
#include "runtime/plan/data/text/text_encoder.h"
#include "runtime/plan/data/text/text_sources.h"

namespace dtrain::plan {

// The treatment of a sample that is longer than a row.
enum class LongSamples { kCut, kDrop, kRefuse };
// "cut", "drop" or "refuse"; InvalidArgument names them for another name.
absl::StatusOr<LongSamples> LongSamplesFromName(absl::string_view name);

struct DocumentRules {
  std::string text_key = "text";
  std::optional<ChatTemplate> chat;  // Instruction data; none: texts.
  InstructionKeys keys;
  int64_t row_length = 1024;  // For instruction data.
  LongSamples long_samples = LongSamples::kCut;
};

// The columns of a table that these rules read.
RowColumns ColumnsFor(const DocumentRules& rules);

struct Document {
  std::vector<uint32_t> ids;
  std::vector<uint8_t> mask;  // For instruction data.
  uint64_t content_hash = 0;  // Equal for equal documents.
  uint64_t split_hash = 0;  // Decides whether it validates: of a file's name, else of the content.
  int64_t text_bytes = 0;
};

struct BadRecord {
  int64_t line = 0;  // Or row, from 1; 0: the source is one text.
  std::string what;
};

struct ChunkDocuments {
  std::vector<Document> documents;
  std::vector<BadRecord> bad;
  // Why else records have no document, or not all of theirs.
  int64_t empty = 0;          // No text, or only blanks.
  int64_t no_completion = 0;  // Instruction data with no answer to learn, or none after a cut.
  int64_t cut = 0;
  int64_t dropped_long = 0;
  int64_t not_text = 0;  // Files of folders that are not UTF-8, or have zero bytes.
};

// Why a file is no text, for people: a zero byte, or bytes that are not UTF-8; "": it is text.
std::string WhyNotText(absl::string_view bytes);

// Tells people why a record was refused with `status`. A row is JSON that dtrain made: to speak of
// its syntax would mislead.
std::string WhyBad(absl::string_view record, bool is_row, const absl::Status& status);

ChunkDocuments MakeDocuments(const TextChunk& chunk, const TextSource& source,
                             const DocumentRules& rules, const TextEncoder& encoder);

}  // namespace dtrain::plan
