// Text to the ids of a model's vocabulary and back, equal to Hugging Face's `tokenizers`.
//
// Reads tokenizer.json (byte-level BPE, BPE with byte fallback, Unigram and WordPiece),
// SentencePiece's model files, tiktoken's rank files and Mistral's tekken.json. What a file asks
// for and this code cannot do is refused by name when the file is read, so that no text is encoded
// by half of the rules.
//
// A Tokenizer does not change after Load; every const member may be called from many threads.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace dtrain::plan {

struct TokenizerOptions {
  // The rule by which text is cut before a tiktoken file's ranks are applied; the file does not say
  // it. One of "gpt2", "cl100k", "llama3", "qwen2", "o200k"; empty: known from the number of ranks,
  // or the file is refused. Other kinds of file ignore it.
  std::string pattern;
};

struct EncodeOptions {
  // Whether the text of a special token, such as "<|endoftext|>", becomes that token. Texts from
  // elsewhere are encoded with false: they cannot end a document or begin another's turn.
  bool special_tokens = true;
  // Whether the tokens are added that the tokenizer puts around a text (its post-processor), such
  // as Llama's begin token.
  bool add_template = false;
};

class Tokenizer {
 public:
  // Reads a folder of a model (tokenizer.json, else tokenizer.model, else tekken.json, else
  // *.tiktoken; begin and end tokens from tokenizer_config.json, special_tokens_map.json,
  // generation_config.json and config.json beside it), or one such file. NotFound: there is none.
  // InvalidArgument: it is damaged; the message has the place. Unimplemented: it needs what is not
  // supported, which is named.
  static absl::StatusOr<std::unique_ptr<Tokenizer>> Load(const std::string& path,
                                                         const TokenizerOptions& options = {});

  virtual ~Tokenizer() = default;

  // Appends the tokens of `text`. Bytes that are no UTF-8 become U+FFFD first, as by Python's
  // decoder with "replace". ResourceExhausted: a regular expression of the tokenizer did more work
  // on this text than its limit allows; InvalidArgument: a part of the text has no token. On an
  // error `ids` is as it was.
  absl::Status Encode(absl::string_view text, const EncodeOptions& options,
                      std::vector<uint32_t>* ids) const;

  // The text of `ids`. Incomplete UTF-8 becomes U+FFFD. Ids outside the vocabulary have no text:
  // models' embeddings are often padded beyond it. `skip_special` leaves special tokens out.
  std::string Decode(absl::Span<const uint32_t> ids, bool skip_special = false) const;

  // Ids are below this; there may be gaps. A model needs at least as many rows of its embedding.
  uint32_t vocab_size() const { return vocab_size_; }

  // The tokens around a document, if the files name them.
  std::optional<uint32_t> begin_token() const { return begin_; }
  std::optional<uint32_t> end_token() const { return end_; }
  // All tokens that end a generated text: `end_token` and those of generation_config.json.
  const std::vector<uint32_t>& stop_tokens() const { return stops_; }

  // The id of a token by its text, such as "<|im_end|>" (an added token), or by its entry in the
  // vocabulary; nullopt: there is none.
  virtual std::optional<uint32_t> TokenId(absl::string_view token) const = 0;
  // Whether `id` is a special token: no part of ordinary text.
  virtual bool IsSpecial(uint32_t id) const = 0;

  // "byte-level BPE", "BPE with byte fallback", "BPE", "Unigram", "WordPiece", "SentencePiece",
  // "tiktoken" or "tekken".
  virtual std::string Kind() const = 0;

  // For those who load a tokenizer: sets the tokens above. `end` becomes the first stop token.
  void SetEnds(std::optional<uint32_t> begin, std::optional<uint32_t> end,
               const std::vector<uint32_t>& other_stops = {});

  // 32 hexadecimal digits: a hash of vocabulary, merges and rules. Equal files have equal ones at
  // every place; a corpus keeps it, so that it is not read with another vocabulary.
  const std::string& identity() const { return identity_; }

 protected:
  Tokenizer() = default;

  // `text` is UTF-8.
  virtual absl::Status EncodeUtf8(absl::string_view text, const EncodeOptions& options,
                                  std::vector<uint32_t>* ids) const = 0;
  virtual std::string DecodeIds(absl::Span<const uint32_t> ids, bool skip_special) const = 0;

  uint32_t vocab_size_ = 0;
  std::string identity_;

 private:
  std::optional<uint32_t> begin_;
  std::optional<uint32_t> end_;
  std::vector<uint32_t> stops_;
};

// Decodes a text token by token, as a model generates it. Not thread-safe.
class StreamDecoder {
 public:
  // REQUIRES: `tokenizer` outlives this.
  explicit StreamDecoder(const Tokenizer& tokenizer, bool skip_special = true)
      : tokenizer_(tokenizer), skip_special_(skip_special) {}

  // The text that is complete with this token; "" while a character's bytes are not all there. All
  // returned parts together are what Decode gives of all ids.
  std::string Push(uint32_t id);
  // The remainder at the end: U+FFFD for an incomplete character.
  std::string Finish();

 private:
  const Tokenizer& tokenizer_;
  bool skip_special_;
  // The ids of the last part that was returned, on which the text of the next ones depends (a space
  // at the start of a text is left out), and those that wait.
  std::vector<uint32_t> ids_;
  size_t context_ = 0;   // How many of `ids_` were returned.
  std::string emitted_;  // Their text.
};

}  // namespace dtrain::plan
