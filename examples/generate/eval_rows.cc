#include "generate/eval_rows.h"

#include <algorithm>
#include <deque>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/status.h"
#include "generate/text_folder.h"
#include "runtime/plan/data/text/chunk_documents.h"
#include "runtime/plan/data/text/text_sources.h"
#include "runtime/plan/data/token_corpus.h"

namespace {

namespace plan = dtrain::plan;

constexpr int64_t kUsualLength = 1024;

class RowsOfFiles final : public EvalRows {
 public:
  RowsOfFiles(plan::TokenCorpus corpus, int64_t length, int64_t vocabulary)
      : EvalRows(length), corpus_(std::move(corpus)), vocabulary_(vocabulary) {}

  absl::StatusOr<std::optional<EvalRow>> Next() override {
    const auto& files = corpus_.files();
    while (static_cast<size_t>(place_.file) < files.size()) {
      const int64_t left = files[static_cast<size_t>(place_.file)].tokens() - 1 - place_.offset;
      if (left <= 0) {
        place_ = {place_.file + 1, 0, 0};
        continue;
      }
      const int64_t length = std::min(sequence_length(), left);
      EvalRow row;
      row.tokens.resize(static_cast<size_t>(length + 1));
      DT_RETURN_IF_ERROR(corpus_.Read(place_, length, vocabulary_, row.tokens.data()));
      if (corpus_.is_masked(place_.file)) {
        row.mask.resize(row.tokens.size());
        DT_RETURN_IF_ERROR(corpus_.ReadMask(place_, length, row.mask.data()));
      }
      place_.offset += length;
      return row;
    }
    return std::nullopt;
  }

 private:
  const plan::TokenCorpus corpus_;
  const int64_t vocabulary_;
  plan::SampleLocation place_;
};

class RowsOfText final : public EvalRows {
 public:
  RowsOfText(plan::FoundSources found, plan::DocumentRules rules,
             std::unique_ptr<plan::TextEncoder> encoder, int64_t length)
      : EvalRows(length),
        found_(std::move(found)),
        reader_(found_.sources, /*source=*/0, /*record=*/0, plan::ColumnsFor(rules)),
        rules_(std::move(rules)),
        encoder_(std::move(encoder)),
        length_(static_cast<size_t>(length)) {}

  absl::StatusOr<std::optional<EvalRow>> Next() override {
    while (!at_end_ && ready_.empty() && text_.size() <= length_) {
      DT_RETURN_IF_ERROR(ReadChunk());
    }
    if (!ready_.empty()) {
      EvalRow row = std::move(ready_.front());
      ready_.pop_front();
      return row;
    }
    if (text_.size() < 2) {
      return std::nullopt;
    }
    const size_t read = std::min(length_, text_.size() - 1);
    EvalRow row;
    row.tokens.assign(text_.begin(), text_.begin() + static_cast<ptrdiff_t>(read + 1));
    text_.erase(text_.begin(), text_.begin() + static_cast<ptrdiff_t>(read));
    return row;
  }

  std::string LeftOut() const override {
    const int64_t files = not_text_ + found_.too_long + found_.unreadable;
    return cut_ + no_completion_ + empty_ + files == 0
               ? ""
               : absl::StrFormat(
                     "%d samples cut to %d tokens; left out: %d records without a completion, %d "
                     "empty; files of folders: %d no text, %d too long, %d not readable",
                     cut_, length_ + 1, no_completion_, empty_, not_text_, found_.too_long,
                     found_.unreadable);
  }

 private:
  absl::Status ReadChunk() {
    DT_ASSIGN_OR_RETURN(const std::optional<plan::TextChunk> chunk, reader_.Next());
    if (!chunk.has_value()) {
      at_end_ = true;
      return absl::OkStatus();
    }
    const plan::TextSource& source = found_.sources[chunk->source];
    plan::ChunkDocuments made = plan::MakeDocuments(*chunk, source, rules_, *encoder_);
    if (!made.bad.empty()) {
      const plan::BadRecord& bad = made.bad.front();
      return absl::InvalidArgumentError(
          absl::StrCat(plan::RecordPlace(source.path, *chunk, bad.line), ": ", bad.what));
    }
    for (const plan::Document& document : made.documents) {
      if (document.mask.empty()) {
        text_.insert(text_.end(), document.ids.begin(), document.ids.end());
      } else if (document.ids.size() > 1) {
        ready_.push_back({{document.ids.begin(), document.ids.end()}, document.mask});
      }
    }
    cut_ += made.cut;
    no_completion_ += made.no_completion;
    empty_ += made.empty;
    not_text_ += made.not_text;
    return absl::OkStatus();
  }

  const plan::FoundSources found_;
  plan::ChunkReader reader_;
  const plan::DocumentRules rules_;
  const std::unique_ptr<plan::TextEncoder> encoder_;
  const size_t length_;
  bool at_end_ = false;
  std::deque<EvalRow> ready_;  // Samples of instruction data, each a row.
  std::deque<int64_t> text_;   // Documents, one after the other; rows overlap by one token.
  int64_t cut_ = 0;
  int64_t no_completion_ = 0;
  int64_t empty_ = 0;
  int64_t not_text_ = 0;
};

bool IsTokenFile(const std::string& path) {
  return absl::EndsWith(path, ".bin") || absl::EndsWith(path, ".idx");
}

// The length of the rows into which samples are packed; 0: there are none.
absl::StatusOr<int64_t> PackedLength(const plan::TokenCorpus& corpus) {
  for (const plan::TokenFile& file : corpus.files()) {
    DT_ASSIGN_OR_RETURN(const auto mask, plan::MaskFile::OpenFor(file.path(), file.tokens()));
    if (mask.has_value() && mask->header().row_length > 0) {
      return mask->header().row_length;
    }
  }
  return 0;
}

absl::StatusOr<int64_t> LengthFor(const EvalData& data, int64_t packed) {
  const int64_t usual = packed > 0 ? packed : std::min(kUsualLength, data.positions);
  const int64_t length = data.sequence_length > 0 ? data.sequence_length : usual;
  if (length > data.positions) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "windows of %d tokens are longer than the model's %d positions (max_position_embeddings); "
        "--sequence-length must be from 1 to %d",
        length, data.positions, data.positions));
  }
  if (packed > 0 && length != packed) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "samples are packed into rows of %d tokens, which windows of %d would cut; leave "
        "--sequence-length out",
        packed, length));
  }
  return length;
}

absl::StatusOr<std::unique_ptr<EvalRows>> OpenFiles(const EvalData& data,
                                                    const plan::Tokenizer& tokenizer) {
  if (data.chat.has_value()) {
    return absl::InvalidArgumentError(
        "--template is for JSONL and Parquet; the masks of token files say already what counts");
  }
  DT_ASSIGN_OR_RETURN(plan::TokenCorpus corpus,
                      plan::TokenCorpus::Open(data.paths, plan::TokenFormat::kAuto));
  if (corpus.vocabulary() > data.vocabulary) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "%s was made by a tokenizer of %d ids, but the model has a vocabulary of %d (%s: %d): they "
        "are of two models; make the tokens again by dtrain data prepare --tokenizer FOLDER",
        corpus.files().front().path(), corpus.vocabulary(), data.vocabulary, data.tokenizer_name,
        tokenizer.vocab_size()));
  }
  // Files of other programs do not say what made them.
  if (corpus.vocabulary() > 0 && corpus.vocabulary() != tokenizer.vocab_size()) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "%s was made by a tokenizer of %d ids, but %s has %d: they are of two models; make the "
        "tokens again by dtrain data prepare --tokenizer FOLDER",
        corpus.files().front().path(), corpus.vocabulary(), data.tokenizer_name,
        tokenizer.vocab_size()));
  }
  DT_ASSIGN_OR_RETURN(const int64_t packed, PackedLength(corpus));
  DT_ASSIGN_OR_RETURN(const int64_t length, LengthFor(data, packed));
  return std::make_unique<RowsOfFiles>(std::move(corpus), length, data.vocabulary);
}

absl::StatusOr<std::unique_ptr<EvalRows>> OpenTexts(const EvalData& data,
                                                    const plan::Tokenizer& tokenizer) {
  auto encoder = EncoderOf(tokenizer);
  if (!tokenizer.end_token().has_value()) {
    return absl::FailedPreconditionError(
        "the files of the tokenizer name no end token, which documents end with; make token files "
        "by dtrain data prepare --end-token");
  }
  DT_ASSIGN_OR_RETURN(const int64_t length, LengthFor(data, /*packed=*/0));
  plan::DocumentRules rules;
  rules.text_key = data.text_key;
  rules.chat = data.chat;
  rules.row_length = length + 1;
  if (data.chat.has_value()) {
    DT_RETURN_IF_ERROR(plan::CheckTemplate(*data.chat, *encoder));
  }
  DT_ASSIGN_OR_RETURN(plan::FoundSources found, plan::FindSources(data.paths, {}));
  return std::make_unique<RowsOfText>(std::move(found), std::move(rules), std::move(encoder),
                                      length);
}

}  // namespace

absl::StatusOr<std::unique_ptr<EvalRows>> OpenEvalRows(const EvalData& data,
                                                       const plan::Tokenizer& tokenizer) {
  const auto files = std::count_if(data.paths.begin(), data.paths.end(), IsTokenFile);
  if (files > 0 && static_cast<size_t>(files) < data.paths.size()) {
    return absl::InvalidArgumentError(
        "--data names token files (*.bin) and texts; evaluate one kind at a time");
  }
  return files > 0 ? OpenFiles(data, tokenizer) : OpenTexts(data, tokenizer);
}
