#include "runtime/plan/tokenizer/bytes_tokenizer.h"

#include <optional>

#include "absl/strings/string_view.h"
#include "base/json.h"
#include "base/status.h"
#include "runtime/plan/tokenizer/tokenizer_json.h"
#include "runtime/plan/tokenizer/unicode/byte_alphabet.h"

namespace dtrain::plan {
namespace {

// The end token is the zero byte itself, as an added token. By its letter, U+0100, it would be
// found in texts that have this letter.
constexpr absl::string_view kEnd("\0", 1);

// Without the regular expression, which cuts words for merges, bytes stay in a row.
Json ByteLevel() {
  return Json{{"type", "ByteLevel"},
              {"add_prefix_space", false},
              {"trim_offsets", true},
              {"use_regex", false}};
}

std::string TokenizerText() {
  Json vocab = Json::object();
  vocab[std::string(kEnd)] = 0;
  for (int byte = 1; byte < 256; ++byte) {
    vocab[LettersOfBytes(std::string(1, static_cast<char>(byte)))] = byte;
  }
  const Json end{
      {"id", 0},         {"content", std::string(kEnd)}, {"single_word", false}, {"lstrip", false},
      {"rstrip", false}, {"normalized", false},          {"special", true}};
  const Json model{{"type", "BPE"},
                   {"dropout", nullptr},
                   {"unk_token", nullptr},
                   {"continuing_subword_prefix", nullptr},
                   {"end_of_word_suffix", nullptr},
                   {"fuse_unk", false},
                   {"byte_fallback", false},
                   {"ignore_merges", false},
                   {"vocab", std::move(vocab)},
                   {"merges", Json::array()}};
  const Json document{{"version", "1.0"},
                      {"truncation", nullptr},
                      {"padding", nullptr},
                      {"added_tokens", Json::array({end})},
                      {"normalizer", nullptr},
                      {"pre_tokenizer", ByteLevel()},
                      {"post_processor", nullptr},
                      {"decoder", ByteLevel()},
                      {"model", model}};
  return DumpJson(document, 2) + "\n";
}

}  // namespace

std::vector<std::pair<std::string, std::string>> BytesTokenizerFiles() {
  const Json config{{"tokenizer_class", "PreTrainedTokenizerFast"},
                    {"clean_up_tokenization_spaces", false},
                    {"eos_token", std::string(kEnd)}};
  // transformers ends a text by this file; a Llama's own default would be 2.
  Json generation = Json::object();
  generation["eos_token_id"] = 0;
  return {{"tokenizer.json", TokenizerText()},
          {"tokenizer_config.json", DumpJson(config, 2) + "\n"},
          {"generation_config.json", DumpJson(generation, 2) + "\n"}};
}

absl::StatusOr<std::unique_ptr<Tokenizer>> MakeBytesTokenizer() {
  DT_ASSIGN_OR_RETURN(std::unique_ptr<Tokenizer> tokenizer,
                      TokenizerFromJson(TokenizerText(), kBytesTokenizer));
  tokenizer->SetEnds(std::nullopt, 0);
  return tokenizer;
}

}  // namespace dtrain::plan
