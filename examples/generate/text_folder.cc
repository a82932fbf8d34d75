#include "generate/text_folder.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/file.h"
#include "base/status.h"
#include "generate/choose_token.h"
#include "gpt/model_source.h"
#include "runtime/plan/tokenizer/bytes_tokenizer.h"

namespace {

using dtrain::Json;
using dtrain::plan::TextEncoder;
using dtrain::plan::Tokenizer;

class BorrowedTokenizer final : public TextEncoder {
 public:
  explicit BorrowedTokenizer(const Tokenizer& tokenizer) : tokenizer_(tokenizer) {
    kind_ = tokenizer.Kind();
    identity_ = tokenizer.identity();
    vocabulary_ = tokenizer.vocab_size();
    end_token_ = tokenizer.end_token().value_or(0);
  }
  absl::Status Encode(absl::string_view text, std::vector<uint32_t>* ids) const override {
    return tokenizer_.Encode(text, {.special_tokens = false}, ids);
  }
  std::string Decode(absl::Span<const uint32_t> ids) const override {
    return tokenizer_.Decode(ids);
  }
  std::optional<uint32_t> TokenId(absl::string_view token) const override {
    return tokenizer_.TokenId(token);
  }

 private:
  const Tokenizer& tokenizer_;
};

// Settings of transformers that change what follows, with the value that changes nothing.
const std::vector<std::pair<const char*, Json>>& OtherSettings() {
  static const auto* const settings =
      new std::vector<std::pair<const char*, Json>>{{"num_beams", 1},
                                                    {"no_repeat_ngram_size", 0},
                                                    {"encoder_repetition_penalty", 1.0},
                                                    {"min_length", 0},
                                                    {"min_new_tokens", nullptr},
                                                    {"bad_words_ids", nullptr},
                                                    {"suppress_tokens", nullptr},
                                                    {"begin_suppress_tokens", nullptr},
                                                    {"forced_bos_token_id", nullptr},
                                                    {"forced_eos_token_id", nullptr},
                                                    {"sequence_bias", nullptr},
                                                    {"guidance_scale", nullptr}};
  return *settings;
}

// The tokenizer that was named, or else the one of the model in `folder`.
absl::StatusOr<std::unique_ptr<Tokenizer>> OpenTokenizer(const std::string& named,
                                                         const std::string& folder) {
  if (named == dtrain::plan::kBytesTokenizer) {
    return dtrain::plan::MakeBytesTokenizer();
  }
  auto tokenizer = Tokenizer::Load(named.empty() ? folder : named);
  if (named.empty() && absl::IsNotFound(tokenizer.status())) {
    return absl::NotFoundError(absl::StrCat(
        tokenizer.status().message(),
        "; name the one of the training data: --tokenizer FOLDER, or --tokenizer bytes if it was "
        "made without a tokenizer"));
  }
  return tokenizer;
}

}  // namespace

absl::StatusOr<TextFolder> OpenTextFolder(const TextFolderOptions& options) {
  TextFolder folder;
  folder.path = options.path;
  folder.tokenizer_name =
      options.tokenizer == dtrain::plan::kBytesTokenizer
          ? "the tokenizer of bytes"
          : absl::StrCat("the tokenizer in ",
                         options.tokenizer.empty() ? options.path : options.tokenizer);
  DT_ASSIGN_OR_RETURN(folder.tokenizer, OpenTokenizer(options.tokenizer, folder.path));
  DT_ASSIGN_OR_RETURN(
      folder.model,
      ReadModelFolder(folder.path, options.type == "bfloat16" ? at::kBFloat16 : at::kFloat));
  const int64_t model = folder.options().vocab_size;
  if (folder.tokenizer->vocab_size() > model) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "%s has %d tokens, but the model in %s has %d (vocab_size): they are of two models; take "
        "the tokenizer that belongs to the model",
        folder.tokenizer_name, folder.tokenizer->vocab_size(), folder.path, model));
  }
  return folder;
}

absl::StatusOr<GenerationDefaults> ReadGenerationDefaults(const std::string& folder) {
  constexpr size_t kBytesMax = 1U << 20;
  GenerationDefaults defaults;
  const std::string path = absl::StrCat(folder, "/generation_config.json");
  if (!dtrain::FileExists(path)) {
    return defaults;
  }
  DT_ASSIGN_OR_RETURN(const std::string text, dtrain::ReadFile(path, kBytesMax));
  DT_ASSIGN_OR_RETURN(const Json config, dtrain::ParseJson(text, path));
  if (!config.is_object()) {
    return absl::InvalidArgumentError(absl::StrCat(path, " holds no JSON object"));
  }
  const Json penalty = config.value("repetition_penalty", Json());
  if (!penalty.is_null() && !(penalty.is_number() && IsRepetitionPenalty(penalty.get<double>()))) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, ": repetition_penalty is ", penalty.dump(),
                     "; allowed: a number from 0.01 to 100 (1: none)"));
  }
  defaults.repetition_penalty = penalty.is_null() ? 1 : penalty.get<double>();
  for (const auto& [name, harmless] : OtherSettings()) {
    const Json value = config.value(name, Json());
    if (!value.is_null() && value != harmless) {
      defaults.ignored.push_back(absl::StrCat(name, " ", value.dump()));
    }
  }
  return defaults;
}

std::unique_ptr<TextEncoder> EncoderOf(const Tokenizer& tokenizer) {
  return std::make_unique<BorrowedTokenizer>(tokenizer);
}
