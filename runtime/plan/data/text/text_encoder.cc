#include "runtime/plan/data/text/text_encoder.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/file.h"
#include "base/json.h"
#include "base/status.h"
#include "runtime/plan/tokenizer/bytes_tokenizer.h"
#include "runtime/plan/tokenizer/tokenizer.h"

namespace dtrain::plan {
namespace {

class ByteEncoder final : public TextEncoder {
 public:
  ByteEncoder() {
    kind_ = kBytesTokenizer;
    identity_ = kBytesTokenizer;
    vocabulary_ = 256;
    files_ = BytesTokenizerFiles();
  }
  absl::Status Encode(absl::string_view text, std::vector<uint32_t>* ids) const override {
    if (const size_t zero = text.find('\0'); zero != absl::string_view::npos) {
      return absl::InvalidArgumentError(absl::StrFormat(
          "byte %d of the text is 0, which ends documents where bytes are tokens", zero));
    }
    for (const char byte : text) {
      ids->push_back(static_cast<unsigned char>(byte));
    }
    return absl::OkStatus();
  }
  std::string Decode(absl::Span<const uint32_t> ids) const override {
    std::string text;
    for (const uint32_t id : ids) {
      text += static_cast<char>(id);
    }
    return text;
  }
  std::optional<uint32_t> TokenId(absl::string_view /*token*/) const override {
    return std::nullopt;
  }
};

class TokenizerEncoder final : public TextEncoder {
 public:
  TokenizerEncoder(std::unique_ptr<Tokenizer> tokenizer, uint32_t end, NamedTexts files)
      : tokenizer_(std::move(tokenizer)) {
    kind_ = tokenizer_->Kind();
    identity_ = tokenizer_->identity();
    vocabulary_ = tokenizer_->vocab_size();
    end_token_ = end;
    files_ = std::move(files);
  }
  absl::Status Encode(absl::string_view text, std::vector<uint32_t>* ids) const override {
    return tokenizer_->Encode({text.data(), text.size()}, {.special_tokens = false}, ids);
  }
  std::string Decode(absl::Span<const uint32_t> ids) const override {
    return tokenizer_->Decode(ids);
  }
  std::optional<uint32_t> TokenId(absl::string_view token) const override {
    return tokenizer_->TokenId({token.data(), token.size()});
  }

 private:
  std::unique_ptr<Tokenizer> tokenizer_;
};

// The number of tokens that the model in a folder knows; 0: its config.json does not say.
int64_t ModelVocabulary(const std::string& folder) {
  constexpr size_t kConfigBytesMax = 1U << 20;
  const auto text = ReadFile(absl::StrCat(folder, "/config.json"), kConfigBytesMax);
  const auto json = text.ok() ? ParseJson(*text, "config.json") : text.status();
  if (!json.ok() || !json->is_object()) {
    return 0;
  }
  const auto nested = json->find("text_config");  // Models of several kinds of input.
  const Json& config = nested != json->end() && nested->is_object() ? *nested : *json;
  const auto size = config.find("vocab_size");
  return size != config.end() && size->is_number_integer() ? size->get<int64_t>() : 0;
}

// Only --end-token or config.json, which a corpus does not keep, may have said what ends documents.
void NameEnd(uint32_t end, NamedTexts* files) {
  constexpr char kName[] = "generation_config.json";
  if (std::none_of(files->begin(), files->end(),
                   [&](const auto& file) { return file.first == kName; })) {
    Json generation = Json::object();
    generation["eos_token_id"] = end;
    files->emplace_back(kName, DumpJson(generation, 2) + "\n");
  }
}

}  // namespace

std::unique_ptr<TextEncoder> TextEncoder::OfBytes() { return std::make_unique<ByteEncoder>(); }

absl::StatusOr<std::unique_ptr<TextEncoder>> TextEncoder::OfTokenizer(
    const std::string& path, const std::string& end_token) {
  DT_ASSIGN_OR_RETURN(std::unique_ptr<Tokenizer> tokenizer, Tokenizer::Load(path));
  const int64_t model = ModelVocabulary(path);
  if (model > 0 && model < tokenizer->vocab_size()) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "the tokenizer in %s has %d tokens, but its config.json says that the model has %d "
        "(vocab_size): they are of two models; take the tokenizer that belongs to the model",
        path, tokenizer->vocab_size(), model));
  }
  std::optional<uint32_t> end = tokenizer->end_token();
  if (!end_token.empty()) {
    end = tokenizer->TokenId(end_token);
    if (!end.has_value()) {
      return absl::InvalidArgumentError(absl::StrFormat(
          "the tokenizer in %s has no token \"%s\" to end documents with", path, end_token));
    }
  }
  if (!end.has_value()) {
    return absl::FailedPreconditionError(absl::StrFormat(
        "the files of the tokenizer in %s name no end token; name one by --end-token, for example "
        "--end-token '<|endoftext|>'",
        path));
  }
  DT_ASSIGN_OR_RETURN(NamedTexts files, FilesOfTokenizer(path));
  NameEnd(*end, &files);
  return std::make_unique<TokenizerEncoder>(std::move(tokenizer), *end, std::move(files));
}

absl::StatusOr<std::unique_ptr<TextEncoder>> TextEncoder::ForDecoding(const std::string& path) {
  DT_ASSIGN_OR_RETURN(std::unique_ptr<Tokenizer> tokenizer, Tokenizer::Load(path));
  const uint32_t end = tokenizer->end_token().value_or(0);
  return std::make_unique<TokenizerEncoder>(std::move(tokenizer), end, NamedTexts());
}

}  // namespace dtrain::plan
