#include "runtime/plan/tokenizer/sentencepiece_model.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/status.h"
#include "runtime/plan/stable_hash.h"
#include "runtime/plan/tokenizer/added_tokens.h"
#include "runtime/plan/tokenizer/sentencepiece/native_codec.h"
#include "runtime/plan/tokenizer/sentencepiece/sentencepiece_codec.h"
#include "runtime/plan/tokenizer/sentencepiece/sentencepiece_proto.h"

namespace dtrain::plan {
namespace {

// The parts of a text between special tokens are encoded each for itself, with the model's space at
// the start. So are they decoded.
class SentencePieceTokenizer : public Tokenizer {
 public:
  SentencePieceTokenizer(std::unique_ptr<SentencePieceCodec> codec, std::vector<AddedToken> special,
                         const std::vector<std::string>& texts, std::string identity)
      : codec_(std::move(codec)), special_(std::move(special), texts) {
    vocab_size_ = codec_->size();
    identity_ = std::move(identity);
    const auto id_or_none = [](int id) {
      return id < 0 ? std::nullopt : std::optional(static_cast<uint32_t>(id));
    };
    SetEnds(id_or_none(codec_->begin_id()), id_or_none(codec_->end_id()));
  }

  std::optional<uint32_t> TokenId(absl::string_view token) const override {
    const std::string text(token);
    const int id = codec_->IdOf(text);
    return id >= 0 && codec_->PieceOf(static_cast<uint32_t>(id)) == text
               ? std::optional(static_cast<uint32_t>(id))
               : std::nullopt;
  }

  bool IsSpecial(uint32_t id) const override { return id < vocab_size_ && codec_->IsControl(id); }

  std::string Kind() const override { return "SentencePiece"; }

 protected:
  absl::Status EncodeUtf8(absl::string_view text, const EncodeOptions& options,
                          std::vector<uint32_t>* ids) const override {
    if (options.add_template && begin_token().has_value()) {
      ids->push_back(*begin_token());
    }
    return special_.ForEachPart(
        text, options.special_tokens, [&](absl::string_view part, const AddedToken* token) {
          if (token != nullptr) {
            ids->push_back(token->id);
            return absl::OkStatus();
          }
          std::string error;
          if (!codec_->Encode({part.data(), part.size()}, ids, &error)) {
            return absl::InvalidArgumentError(
                absl::StrCat("SentencePiece cannot encode a text: ", error));
          }
          return absl::OkStatus();
        });
  }

  std::string DecodeIds(absl::Span<const uint32_t> ids, bool skip_special) const override {
    std::string text;
    std::vector<uint32_t> run;
    const auto flush = [&] {
      text += run.empty() ? "" : codec_->Decode(run);
      run.clear();
    };
    for (const uint32_t id : ids) {
      if (id >= vocab_size_) {
        continue;
      }
      if (!IsSpecial(id)) {
        run.push_back(id);
        continue;
      }
      flush();
      if (!skip_special) {
        text += codec_->PieceOf(id);
      }
    }
    flush();
    return text;
  }

 private:
  std::unique_ptr<SentencePieceCodec> codec_;
  AddedTokenFinder special_;
};

absl::StatusOr<std::unique_ptr<SentencePieceCodec>> CodecOf(absl::string_view model,
                                                            const std::string& name) {
  absl::StatusOr<SentencePieceProto> proto = ParseSentencePieceProto(model);
  std::string error(proto.status().message());
  std::unique_ptr<SentencePieceCodec> codec;
  if (proto.ok()) {
    codec = NativeCodec::Create(*std::move(proto));
    codec = codec == nullptr ? SentencePieceCodec::OfLibrary(std::string(model), &error)
                             : std::move(codec);
  }
  if (codec == nullptr) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "%s is no model of SentencePiece that can be read here, or is damaged: %s", name, error));
  }
  return codec;
}

}  // namespace

absl::StatusOr<std::unique_ptr<Tokenizer>> TokenizerFromSentencePiece(absl::string_view model,
                                                                      const std::string& name) {
  DT_ASSIGN_OR_RETURN(std::unique_ptr<SentencePieceCodec> codec, CodecOf(model, name));
  std::vector<AddedToken> special;
  std::vector<std::string> texts;
  for (uint32_t id = 0; id < codec->size(); ++id) {
    if (codec->IsControl(id)) {
      AddedToken token;
      token.content = codec->PieceOf(id);
      token.id = id;
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
  return std::make_unique<SentencePieceTokenizer>(std::move(codec), std::move(special), texts,
                                                  identity);
}

}  // namespace dtrain::plan
