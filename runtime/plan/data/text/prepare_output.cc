#include "runtime/plan/data/text/prepare_output.h"

#include <filesystem>
#include <utility>

#include "absl/strings/str_format.h"
#include "base/status.h"
#include "runtime/plan/data/data_file.h"
#include "runtime/plan/data/tokenizer_files.h"

namespace dtrain::plan {

absl::Status DivideSplits(const PrepareCounts& counts, bool are_samples, SpoolRange& train,
                          SpoolRange& validation) {
  if (train.documents > 0 && validation.documents > 0) {
    return absl::OkStatus();
  }
  SpoolRange& all = train.documents > 0 ? train : validation;
  SpoolRange& none = train.documents > 0 ? validation : train;
  if (all.documents == 0) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "no text was found: %d records are bad, %d empty, %d without a completion, %d too long, "
        "%d files are no text, %d too long, %d cannot be read",
        counts.bad, counts.empty, counts.no_completion, counts.dropped_long, counts.not_text,
        counts.too_long, counts.unreadable));
  }
  if (all.documents == 1) {
    if (are_samples || all.tokens < 2) {
      return absl::InvalidArgumentError(
          "there is one sample; at least two are needed, one of them for validation");
    }
    const SpoolRange whole = all;
    const int64_t tail = whole.tokens / 10 + 1;
    train = whole;
    train.tokens = whole.tokens - tail;
    validation = whole;
    validation.first_token = train.tokens;
    validation.tokens = tail;
    return absl::OkStatus();
  }
  DT_ASSIGN_OR_RETURN(const DataFile lengths, DataFile::Open(all.files.lengths(), "lengths"));
  int32_t last = 0;
  DT_RETURN_IF_ERROR(
      lengths.ReadAt(4 * (all.documents - 1), {reinterpret_cast<char*>(&last), sizeof(last)}));
  none = {all.files, all.documents - 1, 1, all.tokens - last, last};
  --all.documents;
  all.tokens -= last;
  return absl::OkStatus();
}

Json CorpusManifest(const PrepareTextOptions& options, const TextEncoder& encoder,
                    const TextReport& report) {
  const auto split = [](const WrittenSplit& written, int64_t documents) {
    Json names = Json::array();
    for (const WrittenFile& file : written.files) {
      names.push_back(std::filesystem::path(file.path).filename().string());
    }
    Json json{{"files", std::move(names)}, {"documents", documents}, {"tokens", written.tokens}};
    if (written.rows > 0) {
      json["rows"] = written.rows;
      json["padding"] = written.padding;
      json["trained"] = written.trained;
    }
    return json;
  };
  Json manifest{{"format", options.format == CorpusFormat::kLlmc ? "llmc" : "megatron"},
                {"tokenizer", encoder.kind()},
                {"tokenizer_identity", encoder.identity()},
                {"vocabulary", encoder.vocabulary()},
                {"document_token", encoder.end_token()},
                {kTokenizerFilesKey, TokenizerFileNames(encoder.files())}};
  if (options.rules.chat.has_value()) {
    manifest["sequence_length"] = options.rules.row_length;
  }
  manifest["train"] = split(report.train, report.train_documents);
  manifest["validation"] = split(report.validation, report.validation_documents);
  return manifest;
}

std::string TextTable(const TextReport& report, const TextEncoder& encoder) {
  std::string table =
      absl::StrFormat("%-12s %10s %14s  %s\n", "split", "documents", "tokens", "file");
  const auto row = [&](const char* name, const WrittenSplit& split, int64_t documents) {
    absl::StrAppendFormat(
        &table, "%-12s %10d %14d  %s%s\n", name, documents, split.tokens, split.files[0].path,
        split.files.size() > 2 ? absl::StrFormat(" and %d more", split.files.size() - 1) : "");
    if (split.rows > 0) {
      absl::StrAppendFormat(&table, "%-12s rows: %d; tokens trained on: %d; of padding: %d\n", "",
                            split.rows, split.trained, split.padding);
    }
  };
  row("train", report.train, report.train_documents);
  row("validation", report.validation, report.validation_documents);
  const PrepareCounts& counts = report.counts;
  absl::StrAppendFormat(&table,
                        "records left out: %d bad, %d empty, %d equal to another, %d without a "
                        "completion, %d too long; %d samples were cut\n",
                        counts.bad, counts.empty, counts.equal, counts.no_completion,
                        counts.dropped_long, counts.cut);
  absl::StrAppendFormat(&table, "files left out: %d not text, %d too long, %d not readable\n",
                        counts.not_text, counts.too_long, counts.unreadable);
  if (!report.first_bad.empty()) {
    absl::StrAppendFormat(&table, "the first bad record: %s\n", report.first_bad);
  }
  absl::StrAppendFormat(&table, "vocabulary of %d ids (%s)", encoder.vocabulary(), encoder.kind());
  if (report.train.rows == 0) {
    absl::StrAppendFormat(&table, "; documents end with %d: data.document_token=%d",
                          encoder.end_token(), encoder.end_token());
  }
  return table + "\n";
}

}  // namespace dtrain::plan
