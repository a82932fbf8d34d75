#include "generate/sample.h"

#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/status.h"
#include "generate/generate.h"
#include "gpt/config_reader.h"
#include "runtime/plan/tokenizer/bytes_tokenizer.h"
#include "runtime/plan/tokenizer/tokenizer.h"

namespace {

using dtrain::plan::Tokenizer;

constexpr int64_t kBytesVocabulary = 256;
constexpr char kBytesPrompt[] = "#include <";

absl::StatusOr<std::unique_ptr<Tokenizer>> Open(const std::string& tokenizer) {
  return tokenizer == dtrain::plan::kBytesTokenizer ? dtrain::plan::MakeBytesTokenizer()
                                                    : Tokenizer::Load(tokenizer);
}

GenerateOptions OptionsFor(const SampleOptions& options) {
  GenerateOptions generate;
  generate.sampling = {.temperature = options.temperature, .top_k = options.top_k};
  generate.tokens_max = options.tokens;
  return generate;
}

absl::StatusOr<std::string> SampleBytes(GptImpl& model, const SampleOptions& options) {
  std::string text = options.prompt.value_or(kBytesPrompt);
  text = text.empty() ? "\n" : text;
  const std::vector<uint32_t> prompt(
      reinterpret_cast<const unsigned char*>(text.data()),
      reinterpret_cast<const unsigned char*>(text.data()) + text.size());
  DT_RETURN_IF_ERROR(Generate(model, prompt, OptionsFor(options), [&text](uint32_t token) {
                       text += static_cast<char>(token);
                     }).status());
  std::replace_if(
      text.begin(), text.end(),
      [](char c) { return c != '\n' && c != '\t' && (c < ' ' || c > '~'); }, '.');
  return text;
}

}  // namespace

absl::StatusOr<SampleOptions> SampleOptions::FromJson(const dtrain::Json& json) {
  SampleOptions options;
  ConfigReader reader(json, "sample");
  const auto text = [&](const char* key) -> std::optional<std::string> {
    const dtrain::Json value = reader.Take(key);
    if (!value.is_null() && !value.is_string()) {
      reader.Fail(absl::InvalidArgumentError(
          absl::StrCat("sample.", key, " is ", value.dump(), "; allowed: a text")));
    }
    return value.is_string() ? std::optional(value.get<std::string>()) : std::nullopt;
  };
  options.prompt = text("prompt");
  options.tokenizer = text("tokenizer").value_or("");
  for (const char* const key : {"bytes", "tokens"}) {
    if (reader.has(key) && json.at(key) == 0) {
      options.tokens = 0;
      reader.Ignore(key);
    } else {
      reader.Integer(key, options.tokens);
    }
  }
  reader.Positive("temperature", options.temperature);
  reader.Integer("top_k", options.top_k);
  DT_RETURN_IF_ERROR(reader.Finish());
  return options;
}

bool ShowsText(const GptOptions& model, const SampleOptions& options) {
  return options.tokens > 0 && (!options.tokenizer.empty() || model.vocab_size == kBytesVocabulary);
}

absl::StatusOr<std::string> SampleText(GptImpl& model, const SampleOptions& options) {
  const bool is_bytes = options.tokenizer == dtrain::plan::kBytesTokenizer &&
                        model.options().vocab_size == kBytesVocabulary;
  if (options.tokenizer.empty() || is_bytes) {
    return SampleBytes(model, options);
  }
  DT_ASSIGN_OR_RETURN(const std::unique_ptr<Tokenizer> tokenizer, Open(options.tokenizer));
  std::vector<uint32_t> ids;
  DT_RETURN_IF_ERROR(tokenizer->Encode(options.prompt.value_or(""), {.add_template = true}, &ids));
  if (ids.empty()) {  // A document begins behind the end of another.
    ids.push_back(tokenizer->begin_token().value_or(tokenizer->end_token().value_or(0)));
  }
  GenerateOptions generate = OptionsFor(options);
  generate.stops = tokenizer->stop_tokens();
  DT_RETURN_IF_ERROR(
      Generate(model, ids, generate, [&ids](uint32_t token) { ids.push_back(token); }).status());
  return tokenizer->Decode(ids, /*skip_special=*/true);
}
