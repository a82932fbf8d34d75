#include "runtime/plan/data/text/chunk_documents.h"

#include <algorithm>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_format.h"
#include "base/status.h"
#include "base/text/utf8.h"
#include "runtime/plan/data/token_mask.h"
#include "runtime/plan/stable_hash.h"

namespace dtrain::plan {
namespace {

class DocumentMaker {
 public:
  DocumentMaker(const TextSource& source, bool has_rows, const DocumentRules& rules,
                const TextEncoder& encoder)
      : source_(source), has_rows_(has_rows), rules_(rules), encoder_(encoder) {}

  void AddFile(absl::string_view text) {
    const std::string why = rules_.chat.has_value()
                                ? "instruction data are JSONL, with one object on each line, or "
                                  "rows of Parquet"
                                : WhyNotText(text);
    if (!why.empty()) {
      if (source_.from_folder) {
        ++made_.not_text;
      } else {
        made_.bad.push_back({0, why});
      }
      return;
    }
    if (absl::StripAsciiWhitespace(text).empty()) {
      ++made_.empty;
      return;
    }
    AddText(text, 0, StableHash().Add(source_.name).value());
  }

  void AddLine(absl::string_view line, int64_t number) {
    if (!line.empty() && line.back() == '\r') {
      line.remove_suffix(1);
    }
    if (absl::StripAsciiWhitespace(line).empty()) {
      return;
    }
    const absl::Status status =
        rules_.chat.has_value() ? AddConversation(line) : AddRecord(line, number);
    if (!status.ok()) {
      made_.bad.push_back({number, WhyBad(line, has_rows_, status)});
    }
  }

  void LeaveOutFile() { ++made_.not_text; }

  ChunkDocuments Take() { return std::move(made_); }

 private:
  absl::Status AddRecord(absl::string_view line, int64_t number) {
    DT_ASSIGN_OR_RETURN(const std::string text, ParseTextRecord(line, rules_.text_key));
    if (absl::StripAsciiWhitespace(text).empty()) {
      ++made_.empty;
      return absl::OkStatus();
    }
    AddText(text, number, std::nullopt);
    return absl::OkStatus();
  }

  void AddText(absl::string_view text, int64_t line, std::optional<uint64_t> split_hash) {
    Document document;
    if (const absl::Status status = encoder_.Encode(text, &document.ids); !status.ok()) {
      made_.bad.push_back({line, std::string(status.message())});
      return;
    }
    document.ids.push_back(encoder_.end_token());
    document.content_hash = StableHash().Add(text).value();
    document.split_hash = split_hash.value_or(document.content_hash);
    document.text_bytes = static_cast<int64_t>(text.size());
    made_.documents.push_back(std::move(document));
  }

  absl::Status AddConversation(absl::string_view line) {
    DT_ASSIGN_OR_RETURN(const Conversation conversation, ParseConversation(line, rules_.keys));
    if (HasNoCompletion(conversation)) {
      ++made_.no_completion;
      return absl::OkStatus();
    }
    DT_ASSIGN_OR_RETURN(const std::vector<Piece> pieces, Render(*rules_.chat, conversation));
    EncodedSample sample;
    DT_RETURN_IF_ERROR(EncodePieces(pieces, encoder_, &sample));
    StableHash hash;
    for (const Piece& piece : pieces) {
      hash.Add(piece.text);
    }
    const auto length = static_cast<int64_t>(sample.ids.size());
    if (length > rules_.row_length && !Shorten(sample)) {
      return rules_.long_samples == LongSamples::kDrop
                 ? absl::OkStatus()
                 : absl::InvalidArgumentError(absl::StrFormat(
                       "its sample has %d tokens, more than the %d of --sequence-length; "
                       "--long-samples cut or drop goes on",
                       length, rules_.row_length));
    }
    if (sample.trained() == 0) {
      ++made_.no_completion;
      return absl::OkStatus();
    }
    made_.documents.push_back({std::move(sample.ids), std::move(sample.mask), hash.value(),
                               hash.value(), static_cast<int64_t>(line.size())});
    return absl::OkStatus();
  }

  // False: the sample is not to be cut.
  bool Shorten(EncodedSample& sample) {
    if (rules_.long_samples == LongSamples::kCut) {
      ++made_.cut;
      sample.ids.resize(static_cast<size_t>(rules_.row_length));
      sample.mask.resize(sample.ids.size());
      return true;
    }
    made_.dropped_long += rules_.long_samples == LongSamples::kDrop ? 1 : 0;
    return false;
  }

  const TextSource& source_;
  const bool has_rows_;  // The lines are rows of a table.
  const DocumentRules& rules_;
  const TextEncoder& encoder_;
  ChunkDocuments made_;
};

}  // namespace

absl::StatusOr<LongSamples> LongSamplesFromName(absl::string_view name) {
  if (name == "cut") {
    return LongSamples::kCut;
  }
  if (name == "drop") {
    return LongSamples::kDrop;
  }
  if (name == "refuse") {
    return LongSamples::kRefuse;
  }
  return absl::InvalidArgumentError(
      absl::StrFormat("--long-samples \"%s\" is unknown; allowed: cut, drop, refuse", name));
}

RowColumns ColumnsFor(const DocumentRules& rules) {
  if (!rules.chat.has_value()) {
    return {{{rules.text_key, {}}}, "; --text-key names another"};
  }
  RowColumns columns{
      {{"messages", {"role", "content"}, {"tool_calls", "function_call"}}},
      "; --prompt-key and --completion-key name others",
      {{"messages"}, {rules.keys.prompt, rules.keys.completion}, {"instruction", "output"}}};
  for (const std::string& name :
       {rules.keys.prompt, rules.keys.completion, std::string("instruction"), std::string("input"),
        std::string("output"), std::string("system")}) {
    columns.columns.push_back({name, {}});
  }
  return columns;
}

std::string WhyNotText(absl::string_view bytes) {
  if (const size_t zero = bytes.find('\0'); zero != absl::string_view::npos) {
    return absl::StrFormat("it is no text: byte %d is 0", zero);
  }
  return IsUtf8(bytes) ? "" : "it is no text in UTF-8";
}

std::string WhyBad(absl::string_view record, bool is_row, const absl::Status& status) {
  return is_row && !IsUtf8(record) ? "a text in it is not UTF-8" : std::string(status.message());
}

ChunkDocuments MakeDocuments(const TextChunk& chunk, const TextSource& source,
                             const DocumentRules& rules, const TextEncoder& encoder) {
  DocumentMaker maker(source, chunk.has_rows, rules, encoder);
  if (chunk.is_no_text) {
    maker.LeaveOutFile();
    return maker.Take();
  }
  if (!chunk.has_lines) {
    maker.AddFile(chunk.bytes);
    return maker.Take();
  }
  int64_t number = chunk.first_record;
  for (size_t begin = 0; begin < chunk.bytes.size();) {
    const size_t end = std::min(chunk.bytes.find('\n', begin), chunk.bytes.size());
    maker.AddLine(absl::string_view(chunk.bytes).substr(begin, end - begin), ++number);
    begin = end + 1;
  }
  return maker.Take();
}

}  // namespace dtrain::plan
