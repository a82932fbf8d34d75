#include "runtime/plan/tools/data_train_command.h"

#include <CLI/CLI.hpp>
#include <cstdio>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "base/file.h"
#include "base/status.h"
#include "runtime/plan/data/row_columns.h"
#include "runtime/plan/data/text/chunk_documents.h"
#include "runtime/plan/data/text/records.h"
#include "runtime/plan/data/text/text_sources.h"
#include "runtime/plan/tokenizer/train_tokenizer.h"

namespace dtrain::plan {
namespace {

// The documents of text sources, one after the other.
class SourceDocuments {
 public:
  SourceDocuments(const std::vector<TextSource>& sources, std::string text_key)
      : sources_(sources),
        reader_(sources, 0, 0, ColumnsFor({.text_key = text_key})),
        text_key_(std::move(text_key)) {}

  absl::StatusOr<bool> Next(std::string* document) {
    while (true) {
      if (!chunk_.has_value()) {
        DT_ASSIGN_OR_RETURN(chunk_, reader_.Next());
        if (!chunk_.has_value()) {
          return false;
        }
        at_ = 0;
        record_ = chunk_->first_record;
      }
      DT_ASSIGN_OR_RETURN(const bool found,
                          chunk_->has_lines ? NextLine(document) : WholeFile(document));
      if (!found || !chunk_->has_lines) {
        chunk_.reset();
      }
      if (found) {
        return true;
      }
    }
  }
  // Files of folders that were left out because they are no text.
  int64_t not_text() const { return not_text_; }

 private:
  // False: it is a file of a folder that is no text.
  absl::StatusOr<bool> WholeFile(std::string* document) {
    const std::string why = WhyNotText(chunk_->bytes);
    const TextSource& source = sources_[chunk_->source];
    if (chunk_->is_no_text || (!why.empty() && source.from_folder)) {
      ++not_text_;
      return false;
    }
    if (!why.empty()) {
      return absl::InvalidArgumentError(absl::StrCat(source.name, ": ", why));
    }
    *document = std::move(chunk_->bytes);
    return true;
  }

  absl::StatusOr<bool> NextLine(std::string* document) {
    const absl::string_view bytes = chunk_->bytes;
    while (at_ < bytes.size()) {
      const size_t end = std::min(bytes.find('\n', at_), bytes.size());
      const absl::string_view line = bytes.substr(at_, end - at_);
      at_ = end + 1;
      ++record_;
      if (line.find_first_not_of(" \t\r") == absl::string_view::npos) {
        continue;
      }
      absl::StatusOr<std::string> text = ParseTextRecord(line, text_key_);
      if (!text.ok()) {
        return absl::Status(
            text.status().code(),
            absl::StrCat(RecordPlace(sources_[chunk_->source].path, *chunk_, record_), ": ",
                         WhyBad(line, chunk_->has_rows, text.status())));
      }
      *document = *std::move(text);
      return true;
    }
    return false;
  }

  const std::vector<TextSource>& sources_;
  ChunkReader reader_;
  std::string text_key_;
  std::optional<TextChunk> chunk_;
  size_t at_ = 0;
  int64_t record_ = 0;
  int64_t not_text_ = 0;
};

}  // namespace

struct TrainTokenizerCommand::Arguments {
  std::vector<std::string> sources;
  std::vector<std::string> extensions;
  std::string out;
  std::string text_key = "text";
  TrainTokenizerOptions options;
};

TrainTokenizerCommand::TrainTokenizerCommand(CLI::App* app)
    : arguments_(std::make_unique<Arguments>()),
      app_(app->add_subcommand("train-tokenizer",
                               "Learn a byte-level BPE vocabulary and write tokenizer.json")) {
  Arguments& a = *arguments_;
  app_->footer(
      "Hugging Face's tokenizers and transformers read the folder, and so does\n"
      "dtrain data prepare --tokenizer.\n"
      "Examples:\n"
      "  dtrain data train-tokenizer --out vocabulary ~/books\n"
      "  dtrain data train-tokenizer --out vocabulary --vocab-size 50000 text.jsonl.zst");
  app_->add_option("SOURCES", a.sources,
                   "Text files, JSONL files (also .gz and .zst), Parquet files, folders, or - for "
                   "standard input")
      ->required();
  app_->add_option("--out", a.out, "Folder to write tokenizer.json and tokenizer_config.json to")
      ->option_text("FOLDER")
      ->required();
  app_->add_option("--vocab-size", a.options.vocab_size,
                   "Number of tokens, with the 256 bytes and the special tokens")
      ->capture_default_str();
  app_->add_option("--pattern", a.options.pattern,
                   "How text is cut into words: gpt2, llama3, qwen2, o200k or tekken")
      ->capture_default_str();
  app_->add_option("--special-tokens", a.options.special_tokens,
                   "Special tokens, separated by commas; the first one ends documents")
      ->option_text("LIST")
      ->delimiter(',')
      ->allow_extra_args(false)
      ->capture_default_str();
  app_->add_option("--min-frequency", a.options.min_frequency,
                   "Leave pairs that occur less often unmerged")
      ->capture_default_str();
  app_->add_option("--ext", a.extensions,
                   "In folders, read only files with these extensions, for example md,txt")
      ->option_text("LIST")
      ->delimiter(',')
      ->allow_extra_args(false);
  app_->add_option("--text-key", a.text_key,
                   "Member of a JSONL line, or column of a Parquet file, that is its text")
      ->capture_default_str();
  app_->add_option("--threads", a.options.threads, "Number of threads; 0: one for each core")
      ->capture_default_str();
}

TrainTokenizerCommand::~TrainTokenizerCommand() = default;

bool TrainTokenizerCommand::parsed() const { return app_->parsed(); }

absl::Status TrainTokenizerCommand::Run() const {
  const Arguments& a = *arguments_;
  if (FileExists(a.out + "/config.json")) {
    return absl::AlreadyExistsError(absl::StrFormat(
        "--out %s is the folder of a model, whose tokenizer would be replaced; name another folder",
        a.out));
  }
  FindOptions find;
  find.out = a.out;
  find.file_bytes_max = kDocumentBytesMax;
  for (const std::string& extension : a.extensions) {
    find.extensions.push_back(absl::StrCat(extension.substr(0, 1) == "." ? "" : ".", extension));
  }
  DT_ASSIGN_OR_RETURN(const FoundSources found, FindSources(a.sources, find));
  SourceDocuments documents(found.sources, a.text_key);
  DT_ASSIGN_OR_RETURN(
      const TrainTokenizerReport report,
      TrainTokenizer([&](std::string* document) { return documents.Next(document); }, a.options,
                     a.out));
  std::fputs(absl::StrFormat("documents   %d\nbytes       %d\nwords       %d\nvocabulary  %d%s\n"
                             "written     %s/tokenizer.json\n",
                             report.documents, report.bytes, report.words, report.vocab_size,
                             report.vocab_size < a.options.vocab_size
                                 ? " (the text has no more pairs that are frequent enough)"
                                 : "",
                             a.out)
                 .c_str(),
             stdout);
  if (documents.not_text() + found.too_long + found.unreadable > 0) {
    std::fputs(
        absl::StrFormat("left out    %d files that are no text, %d too long, %d not readable\n",
                        documents.not_text(), found.too_long, found.unreadable)
            .c_str(),
        stdout);
  }
  return absl::OkStatus();
}

}  // namespace dtrain::plan
