#include "runtime/plan/tokenizer/sentencepiece_model.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/status.h"
#include "runtime/plan/stable_hash.h"
#include "runtime/plan/tokenizer/added_tokens.h"
#include "runtime/plan/tokenizer/sentencepiece/sentencepiece_bpe.h"
#include "runtime/plan/tokenizer/sentencepiece/sentencepiece_library.h"
#include "runtime/plan/tokenizer/sentencepiece/sentencepiece_proto.h"

namespace dtrain::plan {
namespace {

// The parts of a text between special tokens are encoded each for itself, with the model's space at
// the start. So are they decoded.
class SentencePieceTokenizer : public Tokenizer {
 public:
  SentencePieceTokenizer(std::unique_ptr<SentencePieceLibrary> library,
                         std::unique_ptr<SentencePieceBpe> bpe, std::vector<AddedToken> special,
                         const std::vector<std::string>& texts, std::string identity)
      : library_(std::move(library)), bpe_(std::move(bpe)), special_(std::move(special), texts) {
    vocab_size_ = static_cast<uint32_t>(library_->size());
    identity_ = std::move(identity);
    const auto id_or_none = [](int id) {
      return id < 0 ? std::nullopt : std::optional(static_cast<uint32_t>(id));
    };
    SetEnds(id_or_none(library_->begin_id()), id_or_none(library_->end_id()));
  }

  std::optional<uint32_t> TokenId(absl::string_view token) const override {
    const std::string text(token);
    const int id = library_->IdOf(text);
    return id >= 0 && library_->PieceOf(id) == text ? std::optional(static_cast<uint32_t>(id))
                                                    : std::nullopt;
  }

  bool IsSpecial(uint32_t id) const override {
    return id < vocab_size_ && library_->IsControl(static_cast<int>(id));
  }

  std::string Kind() const override { return "SentencePiece"; }

 protected:
  absl::Status EncodeUtf8(absl::string_view text, const EncodeOptions& options,
                          std::vector<uint32_t>* ids) const override {
    if (options.add_template && begin_token().has_value()) {
      ids->push_back(*begin_token());
    }
    std::vector<int> found;
    return special_.ForEachPart(
        text, options.special_tokens, [&](absl::string_view part, const AddedToken* token) {
          if (token != nullptr) {
            ids->push_back(token->id);
            return absl::OkStatus();
          }
          if (bpe_ != nullptr) {
            bpe_->Encode(part, ids);
            return absl::OkStatus();
          }
          std::string error;
          if (!library_->Encode(std::string(part), &found, &error)) {
            return absl::InvalidArgumentError(
                absl::StrCat("SentencePiece cannot encode a text: ", error));
          }
          ids->insert(ids->end(), found.begin(), found.end());
          return absl::OkStatus();
        });
  }

  std::string DecodeIds(absl::Span<const uint32_t> ids, bool skip_special) const override {
    std::string text;
    std::vector<int> run;
    const auto flush = [&] {
      text += run.empty() ? "" : library_->Decode(run);
      run.clear();
    };
    for (const uint32_t id : ids) {
      if (id >= vocab_size_) {
        continue;
      }
      if (!IsSpecial(id)) {
        run.push_back(static_cast<int>(id));
        continue;
      }
      flush();
      if (!skip_special) {
        text += library_->PieceOf(static_cast<int>(id));
      }
    }
    flush();
    return text;
  }

 private:
  std::unique_ptr<SentencePieceLibrary> library_;
  std::unique_ptr<SentencePieceBpe> bpe_;  // nullptr: the library encodes.
  AddedTokenFinder special_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<Tokenizer>> TokenizerFromSentencePiece(absl::string_view model,
                                                                      const std::string& name) {
  std::string error;
  std::unique_ptr<SentencePieceLibrary> library =
      SentencePieceLibrary::Load(std::string(model), &error);
  if (library == nullptr) {
    return absl::InvalidArgumentError(
        absl::StrFormat("%s is no model of SentencePiece, or is damaged: %s", name, error));
  }
  DT_ASSIGN_OR_RETURN(const SentencePieceProto proto, ParseSentencePieceProto(model));
  std::vector<AddedToken> special;
  std::vector<std::string> texts;
  for (int id = 0; id < library->size(); ++id) {
    if (library->IsControl(id)) {
      AddedToken token;
      token.content = library->PieceOf(id);
      token.id = static_cast<uint32_t>(id);
      token.special = true;
      texts.push_back(token.content);
      special.push_back(std::move(token));
    }
  }
  StableHash first;
  StableHash second;
  second.Add(1);
  const std::string identity =
      absl::StrFormat("%016x%016x", first.Add(model).value(), second.Add(model).value());
  return std::make_unique<SentencePieceTokenizer>(
      std::move(library), SentencePieceBpe::Create(proto), std::move(special), texts, identity);
}

}  // namespace dtrain::plan
